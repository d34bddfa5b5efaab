"""Slurm job scripts: `fedmpi submit` writes one for a configuration, by the template job.sbatch.j2.

Every value of a template is quoted for bash unless it is marked as text of the script (see quoting.py). The scripts in
slurm/ are what the template gives for DEFAULT_SCRIPTS; a test compares them, so there is one source."""
from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import PurePath

from fedmpi.errors import ROUND_GIVEN_UP, SAVED, BadInput
from fedmpi.slurm.deadline import parse_time_limit
from fedmpi.slurm.quoting import (
    ShellText,
    check_job_name,
    check_setup,
    quote_for_bash,
    quote_for_sbatch,
    quote_placeholders,
    refuse_control_characters,
    split_command,
)

GPU_REQUESTS = ("gpus-per-node", "gres", "gpus-per-task", "none")
# The script knows how these are told of ranks and hosts. Any other launcher is given with all its words.
LAUNCHERS = ("srun", "mpiexec", "ibrun")
# So many starts in a row may die before the run begins, if it had begun before: a node may be ill for a while. The last
# of so many in a row that were asked to stop in their first round ends the job: its rounds do not fit.
MAX_FAILED_STARTS = 3
# Runs of a job array; Slurm's own default is 1,001.
MAX_ARRAY_RUNS = 10_000
# No plan has more nodes, ranks, CPUs, GPUs or restarts.
LARGEST_NUMBER = 1_000_000
SIGNAL = re.compile(r"(?:[BR]{1,2}:)?\w{1,10}(?:@\d{1,5})?", re.ASCII)
ARRAY_OPTIONS = "--array, and --at-once"
SUBMIT_FROM_THERE = "submit from that folder"
# The plan is written from these options; given to sbatch beside it they would contradict it.
PLANNED_OPTIONS = {
    "--nodes": "--nodes", "-N": "--nodes", "--ntasks": "--ranks", "-n": "--ranks", "--ntasks-per-node": "--ranks",
    "--cpus-per-task": "--cpus", "-c": "--cpus", "--time": "--time", "-t": "--time", "--array": ARRAY_OPTIONS,
    "-a": ARRAY_OPTIONS, "--job-name": "--name", "-J": "--name", "--signal": "--signal", "--wrap": "--command",
    "--no-requeue": "--restarts 0", "--requeue": "--restarts", "--chdir": SUBMIT_FROM_THERE, "-D": SUBMIT_FROM_THERE}
# What `fedmpi sweep` has in place of these options of `fedmpi submit`; the others it takes from a profile.
IN_SWEEPS = {"--ranks": "has --ranks", "--cpus": "has --cpus", "--time": "has --time", ARRAY_OPTIONS: "has --at-once",
             "--nodes": "gives each run one node", "--name": "names the job after the folder of its runs"}
# Short options stand together, and the value of the last one behind it: -HN3. These take none.
GLUED_OPTION = re.compile(r"-[hHIkOQsvVW]*([A-Za-z])")


@dataclass(frozen=True)
class JobScript:
    """What a script says; the defaults are those of slurm/run.sbatch.

    Args:
        config: path of the configuration
        settings: key=value, for all runs
        array: the settings of each run of a job array, beside `settings`
        folders: the folder of each run of an array, in `out`; default: its number
        name: of the job
        out: run folder, or folder of an array's runs; None: runs/NAME-JOB
        nodes: how many
        ranks: on all nodes; with `gpus` they follow from it, see `planned_ranks`
        cpus: of each rank, and its threads
        gpus: of each node: a rank each, and the server as one more, unless it trains
        gpu_request: how sbatch is asked for them, one of GPU_REQUESTS
        server_trains: whether the runs set server.hosts_clients
        at_once: so many runs of an array at a time; 0: as many as Slurm starts
        time: time limit, as Slurm writes it
        signal: what Slurm sends so many seconds before the end; "" for nothing
        options: more for sbatch, for example --partition=long
        command: the words that call fedmpi
        launcher: one of LAUNCHERS, or a command with {ranks} and {nodes}
        mpi: srun's --mpi; "" leaves it out
        restarts: how often at most the job starts again
        chain: how many jobs follow each other; 0: one job, which requeues itself
        accept_changed_code: give the option of this name to `fedmpi run`
        setup: the user's own shell commands, put into the script as they stand
    Raises:
        BadInput: for what cannot stand in a script"""
    config: str = "configs/quickstart.yaml"
    settings: tuple[str, ...] = ()
    array: tuple[tuple[str, ...], ...] = ()
    folders: tuple[str, ...] = ()
    name: str = "quickstart"
    out: str | None = None
    nodes: int = 2
    ranks: int = 4
    cpus: int = 1
    gpus: int = 0
    gpu_request: str = "gpus-per-node"
    server_trains: bool = False
    at_once: int = 0
    time: str = "01:00:00"
    signal: str = "USR1@120"
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ("fedmpi",)
    launcher: str = "srun"
    mpi: str = "pmi2"
    restarts: int = 50
    chain: int = 0
    accept_changed_code: bool = False
    setup: str = ":"

    def __post_init__(self) -> None:
        for option, value in (("nodes", self.nodes), ("ranks", self.ranks), ("cpus", self.cpus)):
            if not 1 <= value <= LARGEST_NUMBER:
                raise BadInput(f"--{option} {value}: should be 1 or more, and at most {LARGEST_NUMBER:,}")
        for option, value in (("gpus", self.gpus), ("restarts", self.restarts), ("chain", self.chain),
                              ("at-once", self.at_once)):
            if not 0 <= value <= LARGEST_NUMBER:
                raise BadInput(f"--{option} {value}: should be 0 or more, and at most {LARGEST_NUMBER:,}")
        if self.nodes > self.planned_ranks:
            raise BadInput(f"--ranks {self.ranks} on {self.nodes} nodes: a node would be empty; ask for fewer nodes")
        if self.gpu_request not in GPU_REQUESTS:
            raise BadInput(f"--gpu-request {self.gpu_request}: there are {', '.join(GPU_REQUESTS)}")
        check_array_size(len(self.array))
        if self.signal and not SIGNAL.fullmatch(self.signal):
            raise BadInput(f"--signal {self.signal!r}: write NAME@SECONDS, for example USR1@120, or '' for none")
        parse_time_limit(self.time, "--time")
        check_job_name(self.name)
        split_command("--launcher", self.launcher)
        for what, texts in (("--launcher", (self.launcher,)), ("--mpi", (self.mpi,)), ("--command", self.command),
                            ("--out", (self.out or "-", *self.folders)), ("the configuration", (self.config,)),
                            ("the setting", (*self.settings, *itertools.chain.from_iterable(self.array))),
                            ("--option", self.options)):
            refuse_control_characters(what, *texts)
        if self.setup.strip() not in ("", ":"):
            check_setup(self.setup)
        elif not self.setup.strip():
            # bash takes no function without a command.
            object.__setattr__(self, "setup", ":")
        if self.out:
            # The script writes files beside the folder: its name with an ending.
            object.__setattr__(self, "out", self.out.rstrip("/") or "/")
        for what, path in (("--out", self.out), ("the configuration", self.config)):
            if path is not None and (not path or path[0] in "-!(),"):
                raise BadInput(f"{what} {path!r}: commands would not take it for a path; write ./{path}")
        for option in self.options:
            quote_for_sbatch(option)
            own = find_planned_option(option)
            if own == SUBMIT_FROM_THERE:
                raise BadInput(f"--option={option}: the job would look there for the configuration and the data that "
                               f"are checked here; {own}")
            if own:
                in_a_sweep = IN_SWEEPS.get(own, "takes it from the file of --profile")
                raise BadInput(f"--option={option} contradicts the plan in the script; give `fedmpi submit` {own}; "
                               f"`fedmpi sweep` {in_a_sweep}")

    @property
    def server_has_own_rank(self) -> bool:
        """True if the server is a rank beside those that train. Slurm would give it a GPU by --gpus-per-task."""
        return self.gpu_request != "gpus-per-task" and not self.server_trains

    @property
    def planned_ranks(self) -> int:
        """The ranks on all nodes."""
        return self.nodes * self.gpus + self.server_has_own_rank if self.gpus else self.ranks


def check_array_size(count: int) -> None:
    """Raise BadInput if these are too many runs for one array."""
    if count > MAX_ARRAY_RUNS:
        raise BadInput(f"--array: {count:,} runs; an array has at most {MAX_ARRAY_RUNS:,}: divide it into several "
                       "submissions")


# Each file in slurm/ and the job that it holds.
DEFAULT_SCRIPTS = {
    "run.sbatch": JobScript(),
    "array.sbatch": JobScript(name="sweep", nodes=1, ranks=2, array=(
        ("method=fedavg",), ("method=fedah",), ("method=fedmhc",), ("method=fedmhc", "method.M=6"))),
    "gpu.sbatch": JobScript(config="configs/cifar100.yaml", settings=("device=cuda",), name="cifar100", gpus=4, cpus=4,
                            time="12:00:00", signal="USR1@600"),
}

TITLES = {"run": "One training over several nodes: rank 0 is the server, the other ranks train.",
          "array": "A sweep: each task of the job array is a run of its own; the folder's summary.txt says what "
                   "became of all.",
          "gpu": "One training on GPUs: a rank for each, and rank 0, the server, as one more on the first node.",
          "gpu-per-task": "One training on GPUs: a rank for each; rank 0 is the server and trains, too."}


def find_planned_option(option: str) -> str | None:
    """Return the option of `fedmpi submit` that an option of sbatch contradicts, None if there is none.

    sbatch also takes the beginning of an option's name, if no other begins so."""
    name = option.partition("=")[0]
    if not name.startswith("--") and (short := GLUED_OPTION.match(name)):
        return PLANNED_OPTIONS.get(f"-{short[1]}")
    return next((own for planned, own in PLANNED_OPTIONS.items() if planned.startswith(name)), None)


def render_script(job: JobScript) -> str:
    """Return the job script."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(loader=PackageLoader("fedmpi.slurm", ""), undefined=StrictUndefined, autoescape=False,
                              finalize=quote_for_bash, trim_blocks=True, lstrip_blocks=True,
                              keep_trailing_newline=True)
    environment.filters["as_shell"] = ShellText
    kind = find_launcher_kind(job)
    remarks = {"srun": " MPICH, Intel MPI and Cray MPICH: --mpi=pmi2; Open MPI: --mpi=pmix; or the site's default.",
               "mpiexec": " mpiexec has to be that of the MPI library that mpi4py uses."}
    return environment.get_template("job.sbatch.j2").render(
        job=job, kind=kind, title=ShellText(TITLES[find_job_kind(job)]),
        directives=[quote_for_sbatch(option) for option in list_directives(job)], launcher=write_launcher_words(job),
        launcher_remark=ShellText(remarks.get(kind, "")), failed_starts=MAX_FAILED_STARTS, saved_code=SAVED,
        given_up=ROUND_GIVEN_UP)


def find_job_kind(job: JobScript) -> str:
    """Return the key of the job's title in TITLES."""
    if job.array:
        return "array"
    return "run" if not job.gpus else "gpu" if job.server_has_own_rank else "gpu-per-task"


def find_launcher_kind(job: JobScript) -> str:
    """Return which of LAUNCHERS starts the ranks, "other" for a command of the user's own."""
    words = split_command("--launcher", job.launcher)
    name = PurePath(words[0]).name
    return name if len(words) == 1 and name in LAUNCHERS else "other"


def starts_by_mpiexec(job: JobScript) -> bool:
    """Say whether ranks are started by an MPI library's own mpiexec or mpirun, with whatever options."""
    return PurePath(split_command("--launcher", job.launcher)[0]).name.split(".")[0] in ("mpiexec", "mpirun")


def write_launcher_words(job: JobScript) -> ShellText:
    """Return the first words of the command that starts the ranks, as bash reads them."""
    words = split_command("--launcher", job.launcher)
    if find_launcher_kind(job) == "srun":
        return quote_for_bash([*words, *([f"--mpi={job.mpi}"] if job.mpi else []), "--kill-on-bad-exit=1",
                               *(["--gpus-per-task=1"] if job.gpus and job.gpu_request == "gpus-per-task" else [])])
    return quote_placeholders(words)


def list_directives(job: JobScript) -> list[str]:
    """List the options that sbatch is given."""
    gpus = {"gpus-per-node": f"--gpus-per-node={job.gpus}", "gres": f"--gres=gpu:{job.gpus}",
            "gpus-per-task": "--gpus-per-task=1", "none": None}[job.gpu_request] if job.gpus else None
    # Room for the nodes that have one rank more than others; ibrun takes all ranks from --ntasks.
    per_node = -(-job.planned_ranks // job.nodes)
    signal = job.signal
    if signal and ":" not in signal and starts_by_mpiexec(job):
        # Slurm signals the steps of srun alone, and only some mpiexec start their ranks by it; the script passes it on.
        signal = f"B:{signal}"
    ranks = f"--ntasks={job.planned_ranks}" if find_launcher_kind(job) == "ibrun" else f"--ntasks-per-node={per_node}"
    return [f"--job-name={job.name}", f"--nodes={job.nodes}", *([gpus] if gpus else []), ranks,
            f"--cpus-per-task={job.cpus}", f"--time={job.time}",
            *([f"--array=0-{len(job.array) - 1}" + f"%{job.at_once}" * (job.at_once > 0)] if job.array else []),
            "--no-requeue" if job.chain else "--requeue", *([f"--signal={signal}"] if signal else []),
            "--open-mode=append", f"--output=%x-{'%A_%a' if job.array else '%j'}.out", *job.options]
