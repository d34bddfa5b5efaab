"""`fedmpi submit`: from a command line to a job script, checked now rather than after hours in the queue."""
from __future__ import annotations

import itertools
import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmpi.config.overrides import NAMED_SECTIONS
from fedmpi.config.schema import Config, load_config
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.slurm.profiles import load_profile
from fedmpi.slurm.quoting import split_command
from fedmpi.slurm.sbatch import guess_mpi, require_sbatch, submit_script
from fedmpi.slurm.script import JobScript, check_array_size, find_launcher_kind, render_script

# The words of a line before a remark, which begins with a # at the beginning of a word, as in a shell.
BEFORE_REMARK = re.compile(r"""^((?:\s+|(?!#)(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")++)*+)#.*""")
# More federations that are not prepared yet are only counted.
FEDERATIONS_NAMED = 5


def submit_command(config: str, settings: list[str], array: list[str], options: list[str], profile: str | None,
                   prepare: bool, dry_run: bool, **asked: object) -> None:
    """Check the configuration of every run, write the job script and submit it, or (`dry_run`) print it.

    Args:
        config: the configuration's path.
        settings: key=value, for all runs.
        array: the runs of a job array, see `expand_array`.
        options: more for sbatch.
        profile: the name or the path of a site profile.
        prepare: prepare the federations of the runs first.
        asked: fields of JobScript; None stands for the profile's value or the default.
    Raises:
        BadInput, FedmpiError: if something cannot run, or sbatch refuses it."""
    configs = load_runs(config, settings, array)
    job = build_job(config, settings, array, options, profile, configs=configs, **asked)
    warn_of_untested(profile)
    warn_of_idle(job, configs)
    if dry_run:
        for why in list_unprepared(configs) if prepare else ():
            print(why, file=sys.stderr)
        print(render_script(job), end="")
        return
    require_sbatch(job)
    if prepare:
        prepare_federations(configs)
    numbers, path = submit_script(job)
    print(numbers)
    print(f"submitted {path}; squeue --jobs {numbers} shows it", file=sys.stderr)


def warn_of_untested(profile: str | None) -> None:
    """Say so if nobody tried a profile at its site."""
    if profile and (site := load_profile(profile)).untested:
        why = site.tested.partition(";")[2].strip() or "it does not say where"
        print(f"profile {profile} was not tested: {why}", file=sys.stderr)


def warn_of_idle(job: JobScript, configs: Iterable[Config]) -> None:
    """Say so if ranks of every run will have nothing to do."""
    workers = job.planned_ranks - (not job.server_trains)
    if (clients := max(config.data.clients for config in configs)) < workers:
        print(f"{workers - clients} of {job.planned_ranks} ranks will be idle: there are {clients} clients, and every "
              "other rank hosts one at least; ask for fewer ranks, nodes or GPUs", file=sys.stderr)


def build_job(config: str, settings: list[str], array: list[str], options: list[str], profile: str | None = None,
              configs: list[Config] | None = None, **asked: object) -> JobScript:
    """Return the job that a command line asks for; arguments as of `submit_command`. Raises BadInput."""
    runs = expand_array(array)
    configs = configs or load_runs(config, settings, array)
    if asked.get("command"):
        asked["command"] = split_command("--command", str(asked["command"]))
    name = re.sub(r"[^\w-]", "_", Path(config).stem, flags=re.ASCII)[:100] or "job"
    defaults = {"cpus": max(run.threads for run in configs), "name": name, "command": (sys.executable, "-m", "fedmpi")}
    asked["server_trains"] = all(run.server.hosts_clients for run in configs)
    job = JobScript(config, array=runs, **merge_fields(profile, options, asked, defaults))
    refuse_contradictions(job, asked, zip([[*settings, *words] for words in runs or [()]], configs, strict=True))
    return replace(job, settings=(*choose_gpu_settings(job, configs), *settings))


def merge_fields(profile: str | None, options: Sequence[str], asked: Mapping[str, object],
                 defaults: dict[str, object]) -> JsonObject:
    """Return fields of JobScript: what was asked for, else what the profile says, else the defaults; all `options`.

    Of two options for sbatch the later one counts, so those of the profile come first. `partition` and `account` are
    fields here, but only options of a script."""
    given = {name: value for name, value in asked.items() if value is not None}
    site = load_profile(profile or "generic")
    fields: JsonObject = {"nodes": 1, "mpi": guess_mpi()} | defaults | site.fields | given
    beside_python = Path(sys.executable).with_name("mpiexec")
    if fields.get("launcher") == "mpiexec" and beside_python.exists():
        # The job may find another library's mpiexec first.
        fields["launcher"] = shlex.quote(str(beside_python))
    named = [f"--{name}={value}" for name in ("partition", "account") if (value := fields.pop(name, ""))]
    return {"ranks": 2 * fields["nodes"]} | fields | {"options": (*site.options, *named, *options)}


def refuse_contradictions(job: JobScript, asked: Mapping[str, object],
                          runs: Iterable[tuple[Sequence[str], Config]]) -> None:
    """Raise BadInput if a job would not be what was asked for, or its ranks had fewer CPUs than threads.

    Args:
        asked: fields of JobScript from the command line; None stands for one that was not given.
        runs: the settings of each run as they were given, and its configuration."""
    ranks, restarts = asked.get("ranks"), asked.get("restarts")
    if job.gpus and ranks not in (None, job.planned_ranks):
        server = ", and one for the server" * job.server_has_own_rank
        raise BadInput(f"--ranks {ranks} with --gpus {job.gpus}: a run has a rank for each GPU{server}, which "
                       f"makes {job.planned_ranks}; leave --ranks out")
    # a configuration's own threads are replaced by the CPUs per rank
    threads = max((run.threads for words, run in runs
                   if any(word.partition("=")[0].strip() == "threads" for word in words)), default=0)
    if threads > job.cpus:
        raise BadInput(f"threads = {threads} with {job.cpus} CPUs per rank: threads would wait for each other; give "
                       f"--cpus {threads}, or fewer threads")
    if job.at_once and not job.array and asked.get("at_once"):
        raise BadInput(f"--at-once {job.at_once}: of use for a job array alone; add --array, or leave --at-once out")
    if asked.get("mpi") and find_launcher_kind(job) != "srun":
        raise BadInput(f"--mpi {asked['mpi']}: an option of the launcher srun, and this one is {job.launcher}; leave "
                       "--mpi out, or write what this launcher needs into --launcher")
    if asked.get("gpu_request") and not job.gpus:
        raise BadInput(f"--gpu-request {asked['gpu_request']}: of use with GPUs alone; add --gpus, or leave "
                       "--gpu-request out")
    if job.chain and restarts is not None:
        raise BadInput(f"--restarts {restarts} with --chain {job.chain}: the jobs of a chain follow each other, and "
                       "none starts again; leave --restarts out, or give --chain 0 for one job that starts again")


def choose_gpu_settings(job: JobScript, configs: Sequence[Config]) -> tuple[str, ...]:
    """Return what a job for GPUs sets beside the user's settings. It is refused if it finds no GPU, unless `device` was
    set; and the server trains if Slurm gives it a GPU of its own."""
    on_gpu = ("device=cuda",) if job.gpus and all(run.device == "auto" for run in configs) else ()
    trains = job.gpus and not job.server_has_own_rank and not job.server_trains
    return (*on_gpu, *(("server.hosts_clients=true",) if trains else ()))


def load_runs(config: str, settings: list[str], array: list[str]) -> list[Config]:
    """Return the configuration of every run. Raises BadInput, which says which run of an array is meant."""
    runs = expand_array(array)
    return [load_run(config, [*settings, *words], i, bool(runs)) for i, words in enumerate(runs or [()])]


def load_run(config: str, words: list[str], number: int, many: bool) -> Config:
    """Return the configuration of a run; if there are `many` an error says which."""
    try:
        run = load_config(config, words, "" if many else None)
        refuse_lost_settings(config, words, run)
        return run
    except BadInput as error:
        raise BadInput(f"run {number} of the array: {error}" if many else str(error)) from None


def refuse_lost_settings(config: str, words: list[str], run: Config) -> None:
    """Raise BadInput if the name of a method, model or partition drops a setting that stands before it. The settings
    of all runs come before those of each, so with an array nobody may see that."""
    for later, word in enumerate(words):
        section = word.partition("=")[0]
        if section.rpartition(".")[2] not in NAMED_SECTIONS:
            continue
        for i, setting in enumerate(words[:later]):
            key = setting.partition("=")[0]
            given_again = any(other.startswith(f"{key}=") for other in words[i + 1:])
            if not key.startswith(f"{section}.") or key == f"{section}.name" or given_again:
                continue
            try:
                moved = load_config(config, [*words[:i], *words[i + 1:later + 1], setting, *words[later + 1:]])
                lost = repr(moved) != repr(run)
            except BadInput:
                lost = True
            if lost:
                raise BadInput(f"{setting} would be lost: {word} comes after it, and another name drops what was set "
                               f"for the one before; give {section}=NAME first (also of two --array), or --array FILE "
                               "with the settings of each run on a line")


def find_distinct_data(configs: Iterable[Config]) -> list[Config]:
    """Return one configuration for each federation that the runs need."""
    return list({repr((run.data, run.seed)): run for run in configs}.values())


def list_unprepared(configs: Iterable[Config]) -> list[str]:
    """Say of each federation that is not prepared yet that it is prepared before the job is submitted."""
    from fedmpi.data.federation import find_federation
    missing = [run for run in find_distinct_data(configs) if find_federation(run.data, run.seed) is None]
    said = [f"the federation of data.name={run.data.name} seed={run.seed} is not prepared yet under data.root="
            f"{run.data.root}: without --dry-run, submit prepares it first" for run in missing[:FEDERATIONS_NAMED]]
    more = len(missing) - len(said)
    return said + [f"{more:,} more federations are not prepared yet either"] * (more > 0)


def prepare_federations(configs: Iterable[Config]) -> None:
    """Prepare the federations of the runs here, where data can be downloaded: compute nodes often have no way out.

    Raises BadInput if data are missing: now, rather than after hours in the queue."""
    from fedmpi.data.federation import find_federation, prepare_federation
    for run in find_distinct_data(configs):
        if find_federation(run.data, run.seed) is None:
            print(f"federation {prepare_federation(run.data, run.seed)}", file=sys.stderr)


def expand_array(specs: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the settings of each run.

    Args:
        specs: `key=a,b,...`, of which all combinations are made, or the path of a file with a run on each line.
    Raises:
        BadInput: if a spec cannot be read, or the runs are more than an array has."""
    grid: list[list[tuple[str, ...]]] = []
    keys = set()
    for spec in specs:
        key, equals, values = spec.partition("=")
        if not equals:
            grid.append(read_array_file(spec))
        elif set(values) & set("[]{}'\""):
            raise BadInput(f"--array {spec}: lists and mappings cannot be told apart here; write each run's settings "
                           "on a line of a file, and give that: --array FILE")
        else:
            if key in keys:
                raise BadInput(f"--array {spec}: {key} is given twice, and the later value would replace the earlier "
                               f"one in each run; give all values at once: --array {key}=A,B,C")
            keys.add(key)
            grid.append([(f"{key}={value}",) for value in values.split(",")])
    check_array_size(math.prod(map(len, grid)))
    return tuple(sum(parts, ()) for parts in itertools.product(*grid)) if grid else ()


def read_array_file(path: str) -> list[tuple[str, ...]]:
    """Return the words of each line of a file, as a shell would divide them; # begins a remark."""
    try:
        lines = Path(path).read_text().splitlines()
        words = [tuple(shlex.split(BEFORE_REMARK.sub(r"\1", line, 1))) for line in lines]
    except (OSError, ValueError) as error:
        raise BadInput(f"--array {path}: neither key=value,value nor a file with settings on each line: "
                       f"{error}") from None
    if not any(words):
        raise BadInput(f"--array {path}: the file names no run; write the settings of one on each line")
    return [line for line in words if line]
