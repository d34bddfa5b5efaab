"""Job scripts with hostile values: bash runs the planned command with these values as its words, and nothing else.

The script runs in a bash without a search path, in which the commands that it needs are functions: any other command
would be reported as not found. Hostile texts try to write the file STOLEN, which takes no command at all.
`FEDMPI_TEST_EXAMPLES=400 python -m pytest tests/test_scripts_hostile.py` tries more of them."""
from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fedmpi.errors import BadInput
from fedmpi.slurm.script import JobScript, list_directives, render_script
from tests.launch import LIMIT

EXAMPLES = int(os.environ.get("FEDMPI_TEST_EXAMPLES", 40))
COMMANDS = """
PATH=/nowhere
srun() { printf '%s\\0' "$@" >srun.words; return 75; }
scontrol() { [ "$1" = requeue ] || printf 'n1\\nn2\\n'; }
find() { echo "$1/round-$RANDOM$RANDOM.h5"; }
mkdir() { /bin/mkdir "$@"; }
dirname() { /usr/bin/dirname "$@"; }
sort() { /usr/bin/sort "$@"; }
tail() { /usr/bin/tail "$@"; }
grep() { /bin/grep "$@"; }
awk() { /usr/bin/awk "$@"; }
wc() { /usr/bin/wc "$@"; }
rm() { /bin/rm "$@"; }
fedmpi() { :; }
mv() { :; }
sleep() { :; }
"""
SAYS = ("job 7: start 1 on n1", "job 7: stopped with code 75", "job 7: ended with code 75", "job 9_1: start 1 on n1",
        "job 9_1: stopped with code 75", "job 9_1: ended with code 75")
HOSTILE = ["$(>STOLEN)", "`>STOLEN`", "x;>STOLEN;y", "x&>STOLEN&", "' >STOLEN '", '" >STOLEN "', "\\", "\\'", "a\nb",
           "\n>STOLEN\n", "$IFS", "${x:=>STOLEN}", "*", "~", "!!", "#", "a #b", "$'\\n'>STOLEN", "-x", "--", "", " ",
           ")>STOLEN;(", "}\n>STOLEN\nsetup() {", ");; *) >STOLEN ;; esac", "EOF", "é", "\u202e", "\x1b[2J", "\x00",
           "<(>STOLEN)", "|tee STOLEN", "{a,b}", "[a]", "%x", "\r>STOLEN", "\u2028", "{{ x }}", "{% x %}", "{ranks}"]
words = st.one_of(st.sampled_from(HOSTILE), st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=3).map("".join),
                  st.text(st.sampled_from("aZ0$`'\"\\;&|<>(){}[]*?!#~ \t=%/.-\n"), max_size=12))
several = st.lists(words, max_size=3).map(tuple)


def read_directive(line: str) -> str:
    """Read an option as sbatch does: in double quotes all characters stand for themselves, but \\ hides the next."""
    text, quoted, read = line.removeprefix("#SBATCH "), False, ""
    characters = iter(text)
    for character in characters:
        if character == '"':
            quoted = not quoted
        elif character == "\\":
            read += next(characters)
        else:
            assert quoted or not character.isspace() and character not in "#'", line
            read += character
    assert not quoted, line
    return read


def run_script(job: JobScript, folder: Path, array: bool) -> tuple[str, list[str]]:
    """Run a job's script; return what it printed and the words that srun was given."""
    text = render_script(job)
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "2",
                 "SLURM_CPUS_PER_TASK": "1", "LC_ALL": "C.UTF-8"}
    if array:
        variables |= {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "1"}
    syntax = subprocess.run(["/bin/bash", "-n"], input=text, text=True, capture_output=True)
    assert (syntax.returncode, syntax.stderr) == (0, "")
    done = subprocess.run(["/bin/bash", "-c", COMMANDS + text], cwd=folder, env=variables, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
    return done.stdout, (folder / "srun.words").read_bytes().decode().split("\0")[:-1]


@given(config=words, asked=several, runs=st.lists(several, min_size=2, max_size=2), out=words, name=words, mpi=words,
       command=several, launcher=several, options=several, array=st.booleans(), ranks=st.sampled_from([3, 4]),
       chain=st.integers(0, 2))
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=list(HealthCheck), database=None)
@example(config="c", asked=("a=$(>STOLEN)",), runs=[("b='",), ('c="',)], out="o;>STOLEN", name="x&>STOLEN&y", mpi="'",
         command=("f",), launcher=(), options=(), array=False, ranks=4, chain=0)
def test_nothing_but_the_planned_command_runs(tmp_path_factory, config, asked, runs, out, name, mpi, command, launcher,
                                              options, array, ranks, chain):
    """Values that are refused by the script are replaced by harmless ones, so that the others are tried."""
    folder = tmp_path_factory.mktemp("hostile", numbered=True)
    fields = {"config": config, "settings": asked, "out": out.replace("..", "").lstrip("/"), "name": name, "mpi": mpi,
              "command": ("fedmpi", *command), "array": tuple(runs) if array else (),
              "launcher": shlex.join(["srun", *launcher]), "options": tuple(f"--comment={text}" for text in options)}
    job = JobScript(ranks=ranks, chain=chain, out="o")
    accepted = {"ranks": ranks, "chain": chain, "out": "o"}
    for field, value in fields.items():
        try:
            job = JobScript(**accepted | {field: value})
            accepted[field] = value
        except BadInput as error:
            assert "\n" not in str(error)
    said, told = run_script(job, folder, bool(job.array))
    log = f"{job.out}/1.txt"
    lines = ((folder / log).read_text() if job.array else said).split("\n")[:-1]
    assert said == "" or not job.array
    assert len(lines) in (2, 3) and all(line.startswith(SAYS) for line in lines), lines
    of_launcher = shlex.split(job.launcher)[1:]
    mine = [word.replace("{ranks}", str(ranks)) for word in of_launcher] if of_launcher else [
        *([f"--mpi={job.mpi}"] if job.mpi else []), "--kill-on-bad-exit=1", f"--ntasks={ranks}",
        "--distribution=arbitrary" if ranks == 3 else "--ntasks-per-node=2"]
    settings_of_run = (*job.settings, *(job.array[1] if job.array else ()))
    assert told == [*mine, *job.command, "run", job.config, "threads=1", *settings_of_run, "--out",
                    f"{job.out}/1" if job.array else job.out, "--resume", "auto", "--ranks", str(ranks)]
    directives = [line for line in render_script(job).splitlines() if line.startswith("#SBATCH ")]
    assert [read_directive(line) for line in directives] == list_directives(job)
    expected = {f"{job.out}{'/1' if job.array else ''}{ending}" for ending in (".hosts", ".txt", ".chain", ".part")}
    expected |= {f"{job.out}/.summary.{name}" for name in ("now", "next") if job.array}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found <= {str(Path(path)) for path in expected} | {"srun.words"}


@pytest.mark.parametrize("broken", ["setup", "as it stands"])
def test_a_value_that_was_not_quoted_would_be_seen(tmp_path, broken):
    """The user's own shell in --setup is run; so would be a value that the template did not quote."""
    if broken == "setup":
        job = JobScript(setup=">STOLEN", out="o")
    else:
        from fedmpi.slurm.quoting import ShellText
        job = JobScript(config=ShellText("$(>STOLEN)"), out="o")
    run_script(job, tmp_path, False)
    assert (tmp_path / "STOLEN").exists()
