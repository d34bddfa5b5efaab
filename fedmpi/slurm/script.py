"""Slurm job scripts: `fedmpi submit` writes one for a configuration.

The scripts in slurm/ are what it writes for the defaults below (a test compares them): there is one source."""
from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from fedmpi.errors import BadInput

DIRECTIVE = re.compile(r"[\w@%.,:=+*/\[\]()&|-]+")      # what may stand in a line for sbatch


@dataclass(frozen=True)
class JobScript:
    """What a script says; the defaults are those of slurm/run.sbatch."""
    config: str = "configs/quickstart.yaml"
    settings: tuple[str, ...] = ()                    # key=value
    array: tuple[tuple[str, ...], ...] = ()           # the settings of each run of a job array, beside `settings`
    folders: tuple[str, ...] = ()                     # of each run of an array, in `out`; default: its number
    name: str = "quickstart"
    out: str | None = None                            # run folder, or folder of an array's runs
    nodes: int = 2
    ranks: int = 4                                    # on all nodes; with `gpus` they follow from it
    cpus: int = 1                                     # per rank: its threads
    gpus: int = 0                                     # per node: one rank each, and the server as one more
    time: str = "01:00:00"
    signal: str = "USR1@120"
    options: tuple[str, ...] = ()                     # more for sbatch, e.g. --partition=long
    command: tuple[str, ...] = ("fedmpi",)
    mpi: str = "pmi2"
    restarts: int = 50
    setup: str = ":"

    def __post_init__(self):
        for option, value in (("nodes", self.nodes), ("ntasks", self.ranks), ("cpus", self.cpus)):
            if value < 1:
                raise BadInput(f"--{option} {value}: should be 1 or more")
        if not self.gpus and self.nodes > self.ranks:
            raise BadInput(f"--ntasks {self.ranks} on {self.nodes} nodes: a node would be empty; ask for fewer nodes")
        for value in (self.name, self.time, self.signal or "none", *self.options):
            if not DIRECTIVE.fullmatch(value):
                raise BadInput(f"{value!r} cannot stand in a line for sbatch: no spaces, quotes or new lines")


SLURM_DIR = {      # file -> the job that it holds
    "run.sbatch": JobScript(),
    "array.sbatch": JobScript(name="sweep", nodes=1, ranks=2, array=(
        ("method=fedavg",), ("method=fedah",), ("method=fedmhc",), ("method=fedmhc", "method.M=6"))),
    "gpu.sbatch": JobScript(config="configs/cifar100.yaml", name="cifar100", gpus=4, cpus=4, time="12:00:00",
                      signal="USR1@600"),
}

TITLES = {"run": "One training over several nodes: rank 0 is the server, the other ranks train.",
          "array": "A sweep: each task of the job array is a run of its own; the folder's summary.txt says what "
                   "became of all.",
          "gpu": "One training on GPUs: a rank for each, and rank 0, the server, as one more on the first node."}

START_COMMAND = r'''
# Nothing below has to be changed.
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
newest() { find "$out/checkpoints" -name 'round-*.h5' 2>/dev/null | sort -V | tail -n 1; }
say() { echo "job $id: $1"; }
'''

FINISH = "end() { say \"ended with code $1, $2\"; exit \"$1\"; }\n"
FINISH_ARRAY = r'''end() {
    say "ended with code $1, $2"
    "${fedmpi[@]}" summary "$folder" >"$out.part" && mv "$out.part" "$folder/summary.txt"
    exit "$1"
}
mkdir -p "${out%/*}" && exec >>"$out.txt" 2>&1
'''

HOSTS = r'''
gpus=${SLURM_GPUS_PER_NODE##*:}
mkdir -p "$(dirname "$out")" && export SLURM_HOSTFILE=$out.hosts      # the host of each rank
scontrol show hostnames | awk -v g="$gpus" 'NR == 1 { print } { for (i = 0; i < g; i++) print }' >"$SLURM_HOSTFILE"
unset SLURM_NTASKS_PER_NODE
place=(--distribution=arbitrary --ntasks="$(wc -l <"$SLURM_HOSTFILE")")
'''

BODY = r'''
setup
before=$(newest)
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
say "start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NODELIST: $config ${settings[*]}"
srun @PLACE@--mpi="$mpi" --kill-on-bad-exit=1 "${fedmpi[@]}" run "$config" "${settings[@]}" \
    threads="$SLURM_CPUS_PER_TASK" --out "$out" --resume auto &
step=$! cut=
trap 'kill -USR1 $step' USR1      # sent to this script alone (scancel --batch): srun passes it on to all ranks
trap 'cut=yes' TERM               # Slurm ends the job: it sent the same to the ranks, which save; wait for them
while kill -0 $step 2>/dev/null; do wait $step; done
wait $step
code=$?

# The run is done when its result is there: srun says 0, too, when a job was cut from outside.
[ "$code" = 2 ] && end 2 "the run was refused"
[ -e "$out/result.json" ] && end 0 "finished"
[ "$code" = 0 ] && code=1
[ "$cut" ] && end "$code" "cut short by Slurm: cancelled, preempted or out of time"
[ "$(newest)" = "$before" ] && end "$code" "not started again: no round was gained"
[ "${SLURM_RESTART_COUNT:-0}" -ge "$restarts" ] && end "$code" "not started again: it was $restarts times"
say "stopped with code $code and starts again"
trap - TERM
scontrol requeue "$id" && sleep 600      # Slurm ends this script
end "$code" "it could not be put back into the queue"
'''


def render_script(job: JobScript) -> str:
    """Return the job script."""
    kind = "array" if job.array else "gpu" if job.gpus else "run"
    text = START_COMMAND + (FINISH_ARRAY if job.array else FINISH) + (HOSTS if job.gpus else "")
    body = BODY.replace("@PLACE@", '"${place[@]}" ' if job.gpus else "")
    head = [f"#!/bin/bash\n# {TITLES[kind]}\n# See slurm/README.md for what to change on your cluster.",
            *(f"#SBATCH {line}" for line in list_directives(job)), "", *list_settings(job)]
    return "\n".join(head) + "\n" + text + body


def list_directives(job: JobScript) -> list[str]:
    """List what sbatch is told."""
    per_node = job.gpus + 1 if job.gpus else -(-job.ranks // job.nodes)
    return [f"--job-name={job.name}", f"--nodes={job.nodes}",
            *([f"--gpus-per-node={job.gpus}"] if job.gpus else [f"--ntasks={job.ranks}"]),
            f"--ntasks-per-node={per_node}", f"--cpus-per-task={job.cpus}", f"--time={job.time}",
            *([f"--array=0-{len(job.array) - 1}"] if job.array else []),
            "--requeue", *([f"--signal={job.signal}"] if job.signal else []), "--open-mode=append",
            f"--output=%x-{'%A_%a' if job.array else '%j'}.out", *job.options]


def list_settings(job: JobScript) -> list[str]:
    """List the settings at the top of the script."""
    number = "$SLURM_ARRAY_JOB_ID" if job.array else "$SLURM_JOB_ID"
    out = f"runs/{job.name}-{number}" if job.out is None else shlex.quote(job.out)
    shared = "on a file system that all nodes share"
    lines = [(f"config={shlex.quote(job.config)}", ""),
             (f"settings=({shlex.join(job.settings)})", "changes of it, e.g. (method=fedavg rounds=100)"),
             *([(f"folder={out}", f"of the runs, {shared}"), ("out=$folder/$SLURM_ARRAY_TASK_ID", "")] if job.array else
               [(f"out={out}", f"run folder, {shared}")]),
             (f"fedmpi=({shlex.join(job.command)})", "in a container: (apptainer exec fedmpi.sif fedmpi)"),
             (f"mpi={shlex.quote(job.mpi)}", "MPICH, Intel MPI, Cray: pmi2; Open MPI: pmix"),
             (f"restarts={job.restarts}", "at most; none after a start that gained no round")]
    outs = [f"; out=$folder/{shlex.quote(folder)}" for folder in job.folders] or [""] * len(job.array)
    runs = [f"    {i}) settings+=({shlex.join(words)}){out} ;;"
            for i, (words, out) in enumerate(zip(job.array, outs, strict=True))]
    return ["# Settings", *(line.ljust(40) + f" # {remark}" if remark else line for line, remark in lines),
            *(["case $SLURM_ARRAY_TASK_ID in", *runs, "esac"] if runs else []),
            "setup() {      # what makes fedmpi available: module load mpich; source .venv/bin/activate",
            f"    {job.setup}", "}"]
