"""The command line: each command is a few lines that call the module which does the work."""
from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmpi import __version__
from fedmpi.commands import arguments
from fedmpi.commands import submit_options as on
from fedmpi.commands.arguments import AsJson, ConfigFile, ForPrint, JobFile, Name, Overrides, RunFolders, RunsIn, Scale
from fedmpi.commands.printing import print_errors
from fedmpi.errors import BAD_INPUT
from fedmpi.shipped import init_study, is_job_file, refuse_job_options
from fedmpi.text import exit_with, printable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Personalised and clustered federated learning as an MPI application.\n\n"
                       "Train: [bold]mpiexec -n 3 fedmpi run quickstart[/bold]", rich_markup_mode="rich")


def version(wanted: bool) -> None:
    """Print the version and exit, if it is asked for."""
    if wanted:
        print(f"fedmpi {__version__}")
        raise typer.Exit


@app.callback()
def read_global_options(version: Annotated[bool, typer.Option(
        "--version", callback=version, is_eager=True, help="print the version")] = False) -> None:
    """Read the options that stand before the command."""


@app.command()
def run(config: ConfigFile, overrides: Overrides = None, out: arguments.RunIn = None,
        resume: on.ResumeOption = None, time_limit: on.TimeLimitOption = None,
        ranks: Annotated[int | None, typer.Option(help="refuse to start on another number of MPI ranks")] = None,
        accept_changed_code: on.AcceptOption = False) -> None:
    """Train a federation; start it under mpiexec or srun for several ranks.

    Exit codes: 0 finished, 75 stopped, start it again (saved unless it says otherwise), 2 bad input, 1 failure."""
    from fedmpi.run_request import RunRequest
    from fedmpi.session import run_command
    exit_with(run_command(RunRequest(config, overrides or [], out, resume, time_limit, ranks, accept_changed_code)))


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="a new folder", metavar="FOLDER")]) -> None:
    """Write the template of a study: data, a method, a configuration, a job and tests of one's own."""
    with print_errors():
        files = init_study(folder)
    print(printable(f"{folder}: {', '.join(path.name for path in files)}\nnext: cd {shlex.quote(str(folder))}; "
                    "python make_data.py; mpiexec -n 3 fedmpi run config.yaml"))


@app.command()
def plan(config: ConfigFile, overrides: Overrides = None,
         ranks: arguments.PlannedRanks = 3, as_json: AsJson = False) -> None:
    """Show which rank would host which clients, memory, bytes and steps per round; nothing is trained.

    The federation is prepared if it is not there yet."""
    from fedmpi.commands.plan import make_plan
    from fedmpi.commands.plan_table import format_plan
    with print_errors():
        planned = make_plan(config, overrides or [], ranks)
    print(json.dumps(planned) if as_json else printable(format_plan(planned)))


@app.command()
def data(config: ConfigFile, overrides: Overrides = None,
         out: Annotated[str | None, typer.Option(help="PNG to draw; default: beside the federation")] = None) -> None:
    """Prepare the federation of a configuration and draw its label distribution."""
    with print_errors():
        from fedmpi.data.label_plot import draw_federation
        path, picture = draw_federation(config, overrides or [], out)
    print(printable(f"federation {path}\nlabel distribution {picture}"))


@app.command()
def methods(name: Name = None, as_json: AsJson = False) -> None:
    """List the methods, or explain one."""
    catalogue("methods", name, as_json)


@app.command()
def models(name: Name = None, as_json: AsJson = False) -> None:
    """List the networks, or explain one."""
    catalogue("models", name, as_json)


@app.command()
def datasets(name: Name = None, as_json: AsJson = False) -> None:
    """List the data sets, or explain one."""
    catalogue("datasets", name, as_json)


@app.command()
def partitions(name: Name = None, as_json: AsJson = False) -> None:
    """List the ways to divide a data set among clients, or explain one."""
    catalogue("partitions", name, as_json)


@app.command()
def settings(word: Annotated[str | None, typer.Argument(
                 help="a section, or a word to look for in names and meanings", metavar="SECTION|WORD")] = None,
             as_json: AsJson = False) -> None:
    """List all settings of a configuration, or those of a section, or those that a word finds."""
    from fedmpi.commands import settings_list
    with print_errors():
        found = settings_list.find_settings(word)
    print(json.dumps(found) if as_json else printable(settings_list.format_sections(found)))


def catalogue(kind: str, name: str | None, as_json: bool) -> None:
    """Print the names of a kind, or what is known of one of them."""
    from fedmpi.commands import catalogue
    with print_errors():
        if as_json:
            found = catalogue.list_names(kind) if name is None else catalogue.describe_entry(kind, name)
            print(json.dumps(found, default=str))
        else:
            print(printable(catalogue.list_kind(kind) if name is None else catalogue.explain(kind, name)))


@app.command()
def submit(config: ConfigFile, overrides: Overrides = None, profile: on.ProfileOption = None,
           nodes: on.NodesOption = None, ranks: on.RanksOption = None, gpus: on.GpusOption = None,
           gpu_request: on.GpuRequestOption = None, cpus: on.CpusOption = None, time: on.TimeOption = None,
           partition: on.PartitionOption = None, account: on.AccountOption = None, array: on.ArrayOption = None,
           at_once: on.AtOnceOption = None, option: on.SbatchOption = None, signal: on.SignalOption = None,
           name: on.JobNameOption = None, out: on.OutOption = None, command: on.CommandOption = None,
           launcher: on.LauncherOption = None, mpi: on.MpiOption = None, setup: on.SetupOption = None,
           restarts: on.RestartsOption = None, chain: on.ChainOption = None, prepare: on.PrepareOption = True,
           dry_run: on.DryRunOption = False, accept_changed_code: on.AcceptOption = False) -> None:
    """Write a Slurm job script that restarts itself, submit it and print the job's id."""
    with print_errors():
        from fedmpi.commands.submit import submit_command
        submit_command(config, overrides or [], array or [], option or [], profile, prepare, dry_run, nodes=nodes,
                       ranks=ranks, gpus=gpus, gpu_request=gpu_request, cpus=cpus, time=time, partition=partition,
                       account=account, at_once=at_once, signal=signal, name=name, out=out, command=command, mpi=mpi,
                       launcher=launcher, setup=setup, restarts=restarts, chain=chain,
                       accept_changed_code=accept_changed_code or None)


@app.command()
def status(paths: Annotated[list[str] | None, typer.Argument(
               help="run folders, folders that hold runs, or a job file; default: runs", metavar="RUN|JOB...")] = None,
           scale: Scale = None, out: RunsIn = None, as_json: AsJson = False) -> None:
    """Show how far runs are: round, accuracy, time of a round, time left, memory of a rank, last sign of life."""
    from fedmpi.commands import status
    with print_errors():
        if paths and is_job_file(paths):
            from fedmpi.sweeps.job import plan_job
            runs = plan_job(paths[0], scale, out)[1]
            found = status.read_status([(run.name, run.folder) for run in runs],
                                       {run.folder: run.settings.rounds for run in runs})
        else:
            refuse_job_options(scale, out)
            found = status.read_status(status.find_runs(paths or ["runs"]))
    print(json.dumps(found) if as_json else printable(status.show_status(found)))


@app.command()
def summary(folder: Annotated[str, typer.Argument(help="folder of a job array or a sweep")]) -> None:
    """Show how far the runs of a job array or a sweep came, and why some failed."""
    from fedmpi.commands import summary
    with print_errors():
        print(printable(summary.summarise_runs(folder)))


@app.command()
def sweep(path: JobFile, scale: Scale = None, out: RunsIn = None,
          local: on.LocalOption = None, ranks: on.RanksOfRunOption = None,
          slurm: Annotated[bool, typer.Option("--slurm", help="submit them as a job array instead")] = False,
          profile: on.ProfileOption = None, time: on.TimeOption = None, gpus: on.GpusOption = None,
          cpus: on.CpusOption = None, partition: on.PartitionOption = None, account: on.AccountOption = None,
          at_once: on.AtOnceOption = None, mpi: on.MpiOption = None, option: on.SbatchOption = None,
          setup: on.SetupOption = None, rate: arguments.StepRate = None,
          dry_run: Annotated[bool, typer.Option(
              "--dry-run", help="print commands and cost, with --slurm the job script; start nothing")] = False,
          accept_changed_code: on.AcceptOption = False) -> None:
    """Run all runs of a job that are not finished; the same command continues after any interruption.

    Ctrl-C lets the runs under way save and stop, and a second one ends them at once.
    The options from --profile to --setup need --slurm. There --gpus sets the ranks of a run, in place of --ranks: one
    for each GPU, and one more for a server that does not train.

    Exit codes: 0 all finished (or submitted), 75 stopped, 2 bad input, 1 some failed."""
    with print_errors():
        from fedmpi.sweeps.changed_code import mark_runs
        from fedmpi.sweeps.job import list_job_words, plan_job
        asked: dict[str, object] = {"time": time, "gpus": gpus, "cpus": cpus, "partition": partition,
                                    "account": account, "at_once": at_once, "mpi": mpi, "setup": setup}
        on.refuse_unused_options(slurm, dry_run, asked | {"profile": profile, "option": option}, local, rate)
        job, runs = plan_job(path, scale, out)
        runs = mark_runs(runs, accept_changed_code)
        if dry_run and not slurm:
            from fedmpi.sweeps import estimate
            estimate.show_costs(runs, local or 1, ranks or 1, rate)
            return
        if slurm:
            from fedmpi.sweeps import array
            follow = shlex.join(["fedmpi", "status", *list_job_words(path, scale, out)])
            print(array.submit_runs(runs, dry_run, profile=profile, options=option or [], follow=follow, ranks=ranks,
                                    **asked))
            return
        from fedmpi.sweeps.local import Sweep
        code = Sweep(runs, local or 1, ranks or 1, [job.measure, *job.also]).go()
    exit_with(code)


@app.command()
def report(paths: Annotated[list[str], typer.Argument(help="a job file, folders of runs, or gpu_day.json",
                                                         metavar="JOB|RUN...")],
           scale: Scale = None, out: RunsIn = None, to: arguments.ReportIn = None,
           measure: arguments.TableMeasures = None, for_print: ForPrint = False) -> None:
    """Write tables and figures of what runs have so far, and a page with both."""
    with print_errors():
        from fedmpi.report import command
        print(printable(command.report_paths(paths, scale, out, to, for_print, measure)))


@app.command()
def compare(first: Annotated[str, typer.Argument(help="run folder", metavar="RUN")],
            second: Annotated[str, typer.Argument(help="run folder", metavar="RUN")]) -> None:
    """Show two runs side by side: settings that differ, measures at common rounds, digests."""
    from fedmpi.commands import compare
    with print_errors():
        print(printable(compare.compare_runs(Path(first), Path(second))))


@app.command()
def export(run: Annotated[str, typer.Argument(help="run folder, or one of its checkpoints", metavar="RUN")],
           out: Annotated[str, typer.Argument(help="file to write", metavar="OUT.safetensors")],
           client: arguments.OfClient = None,
           own_code: Annotated[bool, typer.Option("--own-code", help="import the classes that the run names and that "
                                                  "are not built in: only if you trust the run")] = False) -> None:
    """Write a trained model as the state dict of a plain PyTorch module."""
    with print_errors():
        from fedmpi.commands import export
        print(printable(export.export_model(Path(run), Path(out), client, own_code)))


@app.command()
def tensorboard(runs: RunFolders) -> None:
    """Write event files for TensorBoard into run folders: what metrics.jsonl holds at present."""
    from fedmpi.commands import tensorboard
    with print_errors():
        print(printable(tensorboard.write_events([Path(run) for run in runs])))


@app.command()
def wandb(runs: RunFolders) -> None:
    """Write offline runs of Weights & Biases into run folders; `wandb sync` sends them."""
    from fedmpi.commands import wandb
    with print_errors():
        print(printable(wandb.write_offline_runs([Path(run) for run in runs])))


@app.command()
def mlflow(runs: RunFolders, to: Annotated[str, typer.Option(
        help="folder, or address of a tracking server")] = "mlruns") -> None:
    """Add the rounds of runs to a store of MLflow that it does not have yet."""
    from fedmpi.commands import mlflow
    with print_errors():
        print(printable(mlflow.write_to_store([Path(run) for run in runs], to)))


@app.command(hidden=True, add_help_option=False,
             context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def bench(context: typer.Context) -> None:
    """Name the command that runs the benchmarks now."""
    print("fedmpi: the benchmarks are not part of the installed package; run in a checkout: "
          f"{shlex.join(['python', '-m', 'benchmarks', *context.args])}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


@app.command()
def doctor(folder: Annotated[str, typer.Option(help="where runs would be written")] = ".") -> None:
    """Check MPI, devices, HDF5 and the file system; start it as you would start a run."""
    from fedmpi.commands import doctor
    exit_with(doctor.doctor_command(folder))


@app.command()
def verify(run: Annotated[Path | None, typer.Argument(metavar="RUN", help="a finished run, to be repeated")] = None,
           folder: Annotated[str, typer.Option(help="folder for small runs, which are removed afterwards")] = ".",
           add: Annotated[bool, typer.Option(
               "--add", help="append the digests to a checkout's table, or print them to be sent")] = False) -> None:
    """Repeat small runs, or RUN, and check that their digests are known, or at least that losses agree within rounding.

    Under mpiexec all ranks take part. Exit codes: 0 known, within rounding or not published, 1 wrong, 2 bad input."""
    from fedmpi.commands import rerun, verify
    exit_with(verify.verify_command(folder, add) if run is None else rerun.rerun_command(run, folder, add))
