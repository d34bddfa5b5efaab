"""The options of `fedmpi submit`, some of which `fedmpi sweep --slurm` has, too, and some of `fedmpi run`. None stands
for the profile's value or the default. Some options are of no use with each other."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from fedmpi.commands.arguments import MOST_RANKS
from fedmpi.errors import BadInput

LocalOption = Annotated[int | None, typer.Option(min=1, help="runs at a time; default 1")]
RanksOfRunOption = Annotated[int | None, typer.Option(
    min=1, max=MOST_RANKS, help="MPI ranks of each run; default 1, with --slurm the profile's")]
ProfileOption = Annotated[str | None, typer.Option(
    metavar="NAME|FILE", help="a site's options: generic, one-node, cray-pmi, tacc-like, jsc-like or a YAML file")]
NodesOption = Annotated[int | None, typer.Option(min=1, help="nodes; default 1")]
RanksOption = Annotated[int | None, typer.Option(
    "--ranks", "--ntasks", min=1, help="ranks on all nodes; default 2 a node; with --gpus one per GPU, and "
    "the server's unless that trains")]
GpusOption = Annotated[int | None, typer.Option(min=0, help="GPUs per node")]
GpuRequestOption = Annotated[str | None, typer.Option(
    metavar="HOW", help="how sbatch is asked for GPUs: gpus-per-node (default), gres, gpus-per-task or none")]
CpusOption = Annotated[int | None, typer.Option(
    min=1, help="CPUs, and threads, per rank; default: the largest `threads` of the runs")]
TimeOption = Annotated[str | None, typer.Option(help="time limit of a job, as Slurm writes it; default 01:00:00")]
PartitionOption = Annotated[str | None, typer.Option(help="partition")]
AccountOption = Annotated[str | None, typer.Option(help="account")]
ArrayOption = Annotated[list[str] | None, typer.Option(
    metavar="KEY=A,B|FILE", help="a job array over all combinations, or a run per line of FILE")]
AtOnceOption = Annotated[int | None, typer.Option(
    min=0, help="so many runs of a job array at a time; default 0: as many as Slurm starts")]
SbatchOption = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="more for sbatch: --option=--mem=8G")]
SignalOption = Annotated[str | None, typer.Option(
    help="what Slurm sends so many seconds before the end; '': nothing; default USR1@120")]
JobNameOption = Annotated[str | None, typer.Option(help="job name; default: the configuration's")]
OutOption = Annotated[str | None, typer.Option(help="run folder; default: runs/NAME-JOB")]
CommandOption = Annotated[str | None, typer.Option(help="how the job calls fedmpi; default: this Python")]
LauncherOption = Annotated[str | None, typer.Option(
    metavar="WORDS", help="what starts the ranks: srun (default), mpiexec, ibrun, or a command with {ranks}")]
MpiOption = Annotated[str | None, typer.Option(
    help="srun's --mpi: pmi2, or pmix for Open MPI; '' leaves it out; default: as fits the MPI from PyPI, else pmi2")]
SetupOption = Annotated[str | None, typer.Option(help="shell command before the start: module load ...")]
RestartsOption = Annotated[int | None, typer.Option(min=0, help="at most so many starts after the first; default 50")]
ChainOption = Annotated[int | None, typer.Option(
    min=0, help="submit so many jobs that follow each other, in place of one that requeues itself")]
PrepareOption = Annotated[bool,
                          typer.Option(help="prepare the data here, on the login node, before anything is submitted")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="print the script, submit nothing")]
AcceptOption = Annotated[bool, typer.Option(
    "--accept-changed-code", help="continue even if your own code was changed since the checkpoint")]
ResumeOption = Annotated[str | None, typer.Option(
    help="auto: the newest good checkpoint of the run folder, if any (without --out: of the last runs/NAME-NNN, or of "
    "RUN if CONFIG is RUN/config.yaml); or the path of one")]
TimeLimitOption = Annotated[str | None, typer.Option(
    help="save and exit with 75 before this time (01:30:00, 90, 1-12:00:00) or the Slurm job is over")]


def refuse_unused_options(slurm: bool, dry_run: bool, only_slurm: Mapping[str, object], local: int | None,
                          rate: float | None) -> None:
    """Raise BadInput if an option was given of which `fedmpi sweep` would make no use.

    Args:
        slurm: whether the runs are to be submitted.
        dry_run: whether only their cost is to be shown; `rate` is of use for nothing else.
        only_slurm: options by their names that count with --slurm alone; None stands for one that was not given.
        local: an option that counts without it.
        rate: another one."""
    never_slurm = {"local": local, "rate": rate}
    unused = [name for name, value in (never_slurm if slurm else only_slurm).items() if value not in (None, [])]
    given = " ".join(f"--{name.replace('_', '-')}" for name in unused)
    if given and slurm:
        raise BadInput(f"{given}: --slurm makes no use of it; leave it out, since "
                       + ("Slurm decides how many runs go on at a time (at most --at-once)" if "local" in unused else
                          "nothing is estimated"))
    if rate is not None and not dry_run:
        raise BadInput(f"--rate {rate:g}: of use with --dry-run alone; add --dry-run to see what the runs "
                       "would cost, or leave --rate out to start them")
    if given:
        raise BadInput(f"{given}: of use with --slurm alone; add --slurm to submit the runs as a job array, or leave "
                       f"{given} out to run them here (--local 2: two at a time)")
