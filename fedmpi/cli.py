"""The command line: each command is a few lines that call the module which does the work."""
from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedmpi import __version__
from fedmpi.commands import submit_options as on
from fedmpi.errors import BAD_INPUT, FedmpiError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Personalised and clustered federated learning as an MPI application.\n\n"
                       "Train: [bold]mpiexec -n 3 fedmpi run configs/quickstart.yaml[/bold]", rich_markup_mode="rich")

ConfigFile = Annotated[str, typer.Argument(help="YAML file: a diff of the defaults", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(help="e.g. train.lr=0.01 method=fedavg", metavar="KEY=VALUE")]
Name = Annotated[str | None, typer.Argument(help="explain this one", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print a FedmpiError as one message and exit with its code."""
    try:
        yield
    except FedmpiError as error:
        print(f"fedmpi: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None


def version(wanted: bool) -> None:
    """Print the version and exit, if it is asked for."""
    if wanted:
        print(f"fedmpi {__version__}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True,
                                               help="print the version")] = False) -> None:
    """Read the options that stand before the command."""


@app.command()
def run(config: ConfigFile, overrides: Overrides = None,
        out: Annotated[str | None, typer.Option(help="run folder; default: runs/NAME-001, -002, ...")] = None,
        resume: Annotated[str | None, typer.Option(
            help="auto: the newest good checkpoint of the run folder, if any; or the path of one")] = None,
        time_limit: Annotated[str | None, typer.Option(
            help="save and exit with 75 before 01:30:00 (or 90, 1-12:00:00) are over, or the Slurm job")] = None,
        ranks: Annotated[int | None, typer.Option(help="refuse to start on another number of MPI ranks")] = None
        ) -> None:
    """Train a federation; start it under mpiexec or srun for several ranks.

    Exit codes: 0 finished, 75 saved and to be started again, 2 bad input, 1 failure."""
    from fedmpi import session
    sys.exit(session.run_command(config, overrides or [], out, resume, time_limit, ranks))


@app.command()
def plan(config: ConfigFile, overrides: Overrides = None,
         ranks: Annotated[int, typer.Option(min=1, help="ranks to plan for, the server among them")] = 3,
         as_json: AsJson = False) -> None:
    """Show which rank would host which clients, memory, bytes and steps per round; nothing is trained.

    The federation is prepared if it is not there yet."""
    from fedmpi.commands import plan
    with clear_errors():
        planned = plan.make_plan(config, overrides or [], ranks)
    print(json.dumps(planned) if as_json else plan.plan_table(planned))


@app.command()
def data(config: ConfigFile, overrides: Overrides = None,
         out: Annotated[str | None, typer.Option(help="PNG to draw; default: beside the federation")] = None) -> None:
    """Prepare the federation of a configuration and draw its label distribution."""
    with clear_errors():
        from fedmpi.config.schema import load_config
        from fedmpi.data.federation import Federation, prepare
        from fedmpi.data.label_plot import write_label_plot
        settings = load_config(config, overrides or [])
        path = prepare(settings.data, settings.seed, check=True)
        picture = Path(out) if out else path.with_suffix(".png")
        write_label_plot(Federation(path), picture)
    print(f"federation {path}\nlabel distribution {picture}")


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


def catalogue(kind: str, name: str | None, as_json: bool) -> None:
    """Print the names of a kind, or what is known of one of them."""
    from fedmpi.commands import catalogue
    with clear_errors():
        if as_json:
            found = catalogue.names_of_kind(kind) if name is None else catalogue.entry(kind, name)
            print(json.dumps(found, default=str))
        else:
            print(catalogue.list_kind(kind) if name is None else catalogue.explain(kind, name))


@app.command()
def submit(config: ConfigFile, overrides: Overrides = None, profile: on.Profile = None, nodes: on.Nodes = None,
           ranks: on.Ranks = None, gpus: on.Gpus = None, gpu_request: on.GpuRequest = None, cpus: on.Cpus = None,
           time: on.Time = None, partition: on.Partition = None, account: on.Account = None, array: on.Array = None,
           option: on.Option = None, signal: on.Signal = None, name: on.Name = None, out: on.Out = None,
           command: on.Command = None, launcher: on.Launcher = None, mpi: on.Mpi = None, setup: on.Setup = None,
           restarts: on.Restarts = None, chain: on.Chain = None, prepare: on.Prepare = True,
           dry_run: on.DryRun = False) -> None:
    """Write a Slurm job script that restarts itself, submit it and print the job's id."""
    from fedmpi.commands.submit import submit_command
    with clear_errors():
        more = [f"--{k}={v}" for k, v in (("partition", partition), ("account", account)) if v] + (option or [])
        submit_command(config, overrides or [], array or [], more, profile, prepare, dry_run, nodes=nodes, ranks=ranks,
                       gpus=gpus, gpu_request=gpu_request, cpus=cpus, time=time, signal=signal, name=name, out=out,
                       command=command, launcher=launcher, mpi=mpi, setup=setup, restarts=restarts, chain=chain)


@app.command()
def summary(folder: Annotated[str, typer.Argument(help="folder of a job array or a sweep")]) -> None:
    """Show how far the runs of a job array or a sweep came, and why some failed."""
    from fedmpi.commands import summary
    with clear_errors():
        print(summary.summarise_runs(folder))


JobFile = Annotated[str, typer.Argument(help="YAML file: rows, columns and seeds of runs", metavar="JOB")]
Scale = Annotated[str | None, typer.Option(help="a smaller variant that the job names")]
RunsIn = Annotated[str | None, typer.Option(help="folder of the job's runs; default: runs/JOB[-SCALE]")]


@app.command()
def sweep(path: JobFile, scale: Scale = None, out: RunsIn = None,
          local: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
          ranks: Annotated[int, typer.Option(min=1, help="MPI ranks of each run")] = 1,
          slurm: Annotated[bool, typer.Option("--slurm", help="submit them as a job array instead")] = False,
          profile: on.Profile = None, time: on.Time = None, gpus: on.Gpus = None, cpus: on.Cpus = None,
          mpi: on.Mpi = None, option: on.Option = None, setup: on.Setup = None,
          rate: Annotated[float | None, typer.Option(
              help="with --dry-run: steps a second of one process; default: measured here")] = None,
          dry_run: Annotated[bool, typer.Option(
              "--dry-run", help="print commands and cost, with --slurm the job script; start nothing")] = False
          ) -> None:
    """Run all runs of a job that are not finished; the same command continues after any interruption.

    The options from --profile to --setup count with --slurm. There --gpus sets the ranks of a run: one for each GPU,
    and one more for the server; --ranks then does not count.

    Exit codes: 0 all finished (or submitted), 75 stopped, 2 bad input, 1 some failed."""
    with clear_errors():
        from fedmpi.sweeps.job import plan_job
        _, runs = plan_job(path, scale, out)
        if dry_run and not slurm:
            from fedmpi.sweeps import estimate
            estimate.show(runs, local, ranks, rate)
            return
        if slurm:
            from fedmpi.sweeps import array
            print(array.submitted(runs, dry_run, profile=profile, options=option or [], ranks=ranks, time=time,
                                  gpus=gpus, cpus=cpus, mpi=mpi, setup=setup))
            return
        from fedmpi.sweeps.local import Sweep
        code = Sweep(runs, local, ranks).go()
    sys.exit(code)


@app.command()
def report(paths: Annotated[list[str], typer.Argument(help="a job file, folders of runs, or gpu_day.json",
                                                         metavar="JOB|RUN...")],
           scale: Scale = None, out: RunsIn = None,
           to: Annotated[str | None, typer.Option(help="folder to write to; default: OUT/report, or report")] = None
           ) -> None:
    """Write tables and figures of what runs have so far, and a page with both."""
    with clear_errors():
        from fedmpi.report import gpu_day, gpu_tables, results, write
        if any(gpu_day.is_book(Path(path)) for path in paths):
            print(f"report {gpu_tables.write_day([*map(Path, dict.fromkeys(paths))], Path(to or 'report'))}")
            return
        if len(paths) == 1 and not Path(paths[0]).is_dir():
            from fedmpi.sweeps.job import plan_job
            job, runs = plan_job(paths[0], scale, out)
            command = shlex.join(["fedmpi", "sweep", paths[0], *(["--scale", scale] if scale else []),
                                  *(["--out", out] if out else [])])
            shown, folder = results.of_job(job, runs, command), runs[0].folder.parents[2] / "report"
        else:
            shown, folder = results.of_folders([Path(path) for path in dict.fromkeys(paths)]), Path("report")
        print(f"report {write.write_report(shown, Path(to) if to else folder)}")


@app.command()
def compare(first: Annotated[str, typer.Argument(help="run folder", metavar="RUN")],
            second: Annotated[str, typer.Argument(help="run folder", metavar="RUN")]) -> None:
    """Show two runs side by side: settings that differ, measures at common rounds, digests."""
    from fedmpi.commands import compare
    with clear_errors():
        print(compare.compare_runs(Path(first), Path(second)))


@app.command()
def export(run: Annotated[str, typer.Argument(help="run folder, or one of its checkpoints", metavar="RUN")],
           out: Annotated[str, typer.Argument(help="file to write", metavar="OUT.safetensors")],
           client: Annotated[int | None, typer.Option(help="the model by which this client is evaluated; default: "
                                                           "the global one")] = None,
           own_code: Annotated[bool, typer.Option("--own-code", help="import the classes that the run names and that "
                                                  "are not built in: only if you trust the run")] = False) -> None:
    """Write a trained model as the state dict of a plain PyTorch module."""
    with clear_errors():
        from fedmpi.commands import export
        print(export.export_model(Path(run), Path(out), client, own_code))


@app.command()
def tensorboard(runs: Annotated[list[str], typer.Argument(help="run folders, finished or not", metavar="RUN...")]
                ) -> None:
    """Write event files for TensorBoard into run folders: what metrics.jsonl holds at present."""
    from fedmpi.commands import tensorboard
    with clear_errors():
        print(tensorboard.write_events([Path(run) for run in runs]))


@app.command(hidden=True, add_help_option=False,
             context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def bench(context: typer.Context) -> None:
    """Name the command that runs the benchmarks now."""
    command = shlex.join(["python", "-m", "benchmarks", *context.args])
    print(f"fedmpi: the benchmarks are no part of the installed package; run in a checkout: {command}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


@app.command()
def doctor(folder: Annotated[str, typer.Option(help="where runs would be written")] = ".") -> None:
    """Check MPI, devices, HDF5 and the file system; start it as you would start a run."""
    from fedmpi.commands import doctor
    sys.exit(doctor.doctor_command(folder))


@app.command()
def verify(run: Annotated[Path | None, typer.Argument(metavar="RUN", help="a finished run, to be repeated")] = None,
           folder: Annotated[str, typer.Option(help="folder for small runs, which are removed afterwards")] = ".",
           add: Annotated[bool, typer.Option(
               "--add", help="append the hashes to a checkout's table, or print them to be sent")] = False) -> None:
    """Repeat small runs, or RUN, and check that their hashes are known, or at least that losses agree within rounding.

    Under mpiexec all ranks take part. Exit codes: 0 known, within rounding or not published, 1 wrong, 2 bad input."""
    from fedmpi.commands import rerun, verify
    sys.exit(verify.verify_command(folder, add) if run is None else rerun.rerun_command(run, folder, add))
