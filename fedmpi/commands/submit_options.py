"""The options of `fedmpi submit`, some of which `fedmpi sweep --slurm` has, too. None stands for the
profile's value or the default."""
from __future__ import annotations

from typing import Annotated

import typer

Profile = Annotated[str | None, typer.Option(
    metavar="NAME|FILE", help="a site's options: generic, one-node, cray-pmi, tacc-like, jsc-like or a YAML file")]
Nodes = Annotated[int | None, typer.Option(min=1, help="nodes; default 1")]
Ranks = Annotated[int | None, typer.Option(
    "--ntasks", min=1, help="ranks on all nodes; default 2 a node; with --gpus: one each and the server")]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs per node")]
GpuRequest = Annotated[str | None, typer.Option(
    metavar="HOW", help="how sbatch is asked for GPUs: gpus-per-node (default), gres, gpus-per-task or none")]
Cpus = Annotated[int | None, typer.Option(
    min=1, help="CPUs, and threads, per rank; default: the largest `threads` of the runs")]
Time = Annotated[str | None, typer.Option(help="time limit of a job, as Slurm writes it; default 01:00:00")]
Partition = Annotated[str | None, typer.Option(help="partition")]
Account = Annotated[str | None, typer.Option(help="account")]
Array = Annotated[list[str] | None, typer.Option(
    metavar="KEY=A,B|FILE", help="a job array over all combinations, or a run per line of FILE")]
Option = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="more for sbatch: --option=--mem=8G")]
Signal = Annotated[str | None, typer.Option(
    help="what Slurm sends so many seconds before the end; '': nothing; default USR1@120")]
Name = Annotated[str | None, typer.Option(help="job name; default: the configuration's")]
Out = Annotated[str | None, typer.Option(help="run folder; default: runs/NAME-JOB")]
Command = Annotated[str | None, typer.Option(help="how the job calls fedmpi; default: this Python")]
Launcher = Annotated[str | None, typer.Option(
    metavar="WORDS", help="what starts the ranks: srun (default), mpiexec, ibrun, or a command with {ranks}")]
Mpi = Annotated[str | None, typer.Option(
    help="srun's --mpi: pmi2, or pmix for Open MPI; '' leaves it out; default: as fits the MPI from PyPI, else pmi2")]
Setup = Annotated[str | None, typer.Option(help="shell command before the start: module load ...")]
Restarts = Annotated[int | None, typer.Option(min=0, help="at most so many starts after the first; default 50")]
Chain = Annotated[int | None, typer.Option(
    min=0, help="submit so many jobs that follow each other, in place of one that requeues itself")]
Prepare = Annotated[bool, typer.Option(help="prepare the data here, on the login node, before anything is submitted")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the script, submit nothing")]
