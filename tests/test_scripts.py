"""Job scripts are run by bash with an srun and a scontrol of the tests: when a job ends, when it is queued again."""
from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmpi.slurm.script import JobScript, render_script

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at signals in /proc")

# Each program writes down its arguments and its environment, and does what the test says.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >srun.words
echo "$OMP_NUM_THREADS $SRUN_CPUS_PER_TASK $MODULE ${SLURM_NTASKS_PER_NODE:-unset} $SLURM_HOSTFILE" >srun.environment
echo "${SLURM_ARRAY_JOB_ID-unset} ${SLURM_ARRAY_TASK_ID-unset}" >srun.task
mkdir -p "$OUT/checkpoints"
trapped() { (( 16#$(sed -n 's/^SigCgt:\\s*//p' /proc/$PPID/status) & 0x4000 )); }      # the script waits for TERM
until trapped; do sleep .01; done
# bash loses the exit code of a process that ends while a trap runs: send a signal, and wait until bash waits again
waits() { [ "$(grep -c -e '^State:.S' -e '^ShdPnd:.0*$' /proc/$PPID/status)" = 2 ]; }
told() { kill "-$1" $PPID; until [ "$1" = TERM ] || [ "$asked" ]; do sleep .01; done; until waits; do sleep .01; done; }
trap 'asked=yes' USR1
DOES
"""
# Slurm ends the script of a job that it queues again.
SCONTROL = """#!/bin/bash
[ "$1" = show ] && { echo "$*" >scontrol.show; printf 'n1\\nn2\\n'; exit; }
echo "$*" >>scontrol.words
exec kill -TERM $PPID
"""
FEDMPI = """#!/bin/bash
echo "fedmpi $*"
"""
GAIN = 'touch "$OUT/checkpoints/round-000003.h5"; '
GIVEN_UP = 'echo "fedmpi: client 3, round 1: asked to stop ...: the round is given up" >>"$OUT/log.txt"; '
DONE = 'echo {} >"$OUT/result.json"; '
REFUSED = 'echo refused >"$FEDMPI_REFUSAL_FILE"; exit 2'
BASE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "3",
        "SLURM_NTASKS_PER_NODE": "5"}


@dataclass
class Done:
    code: int
    said: str
    # The words that scontrol was called with, "" if it was not called.
    requeued: str


@dataclass
class Cluster:
    """A folder in which scripts are run as Slurm would run them."""
    folder: Path

    def tool(self, name: str, text: str):
        (self.folder / "bin").mkdir(exist_ok=True)
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run(
        self, does: str, job: JobScript | None = None, scontrol: str = SCONTROL, out: str = "out",
        script_words: tuple[str, ...] = (), **environment
    ) -> Done:
        for name, text in (("srun", SRUN.replace("DOES", does)), ("scontrol", scontrol), ("fedmpi", FEDMPI)):
            self.tool(name, text)
        job = job or JobScript("c.yaml", ("a=1", "b={c: d e}"), out="out", restarts=4, setup="export MODULE=loaded")
        (self.folder / "script").write_text(render_script(job))
        env = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "OUT": out, **BASE, **environment}
        done = subprocess.run(["bash", "script", *script_words], cwd=self.folder, env=env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        return Done(done.returncode, done.stdout, self.read("scontrol.words"))

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


@pytest.mark.parametrize("does, code, why", [
    (DONE + "exit 0", 0, "finished"),
    (DONE + "exit 137", 0, "finished"),                       # killed after it had finished
    (REFUSED, 2, "the run was refused"),
    (GAIN + REFUSED, 2, "the run was refused"),
    (DONE + REFUSED, 2, "the run was refused"),               # the result is that of another run in that folder
    ('echo began >>"$OUT/log.txt"; exit 137', 137, "not started again: no round was gained"),
    ("exit 0", 1, "not started again: no round was gained"),  # srun says 0 when a job was cut from outside
    ('touch "$OUT/checkpoints/other.h5"; exit 1', 1, "not started again: no round was gained"),
    (GAIN + "told TERM; exit 75", 75, "cut short by Slurm: cancelled, preempted or out of time"),
    (GAIN + "told TERM; exit 0", 1, "cut short by Slurm: cancelled, preempted or out of time"),
    (DONE + "told TERM; exit 0", 0, "finished")])
def test_when_a_job_ends(cluster, does, code, why):
    done = cluster.run(does)
    assert (done.code, done.requeued) == (code, "")
    assert done.said == (f"job 7: start 1 on n[1-2]: c.yaml a=1 b={{c: d e}}\njob 7: ended with code {code}, {why}\n")


@pytest.mark.parametrize("does, code", [
    (GAIN + "exit 75", 75), (GAIN + "exit 137", 137), (GAIN + "exit 1", 1), (GAIN + "exit 0", 1),
    ("exit 75", 75),                                          # preempted in its first round, say
    (GIVEN_UP + "exit 137", 75),
    # USR1 to the script alone: it passes it on to srun, whose ranks save
    ("told USR1; " + GAIN + "exit 75", 75)])
def test_when_a_job_starts_again(cluster, does, code):
    done = cluster.run(does, SLURM_RESTART_COUNT="3")
    assert done.requeued == "requeue 7\n" and done.code == -15
    assert done.said == ("job 7: start 4 on n[1-2]: c.yaml a=1 b={c: d e}\n"
                         f"job 7: stopped with code {code} and starts again\n")


def test_a_job_that_an_array_task_has_submitted_is_not_that_task(cluster):
    """sbatch passes on the variables of the task, and Slurm does not set them for a job of its own."""
    done = cluster.run(GAIN + "exit 75", SLURM_ARRAY_JOB_ID="2", SLURM_ARRAY_TASK_ID="5")
    assert done.requeued == "requeue 7\n" and done.said.startswith("job 7: start 1 on")
    assert cluster.read("srun.task") == "unset unset\n"


def test_only_a_new_round_counts(cluster):
    """The newest round has the highest number: `round-1000000` comes after `round-999999`."""
    checkpoints = cluster.folder / "out" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "round-999999.h5").touch()
    assert "no round was gained" in cluster.run("touch $OUT/checkpoints/round-000007.h5; exit 1").said
    assert cluster.run("exit 1").requeued == ""
    assert cluster.run("touch $OUT/checkpoints/round-1000000.h5; exit 1").requeued == "requeue 7\n"
    (cluster.folder / "scontrol.words").unlink()
    # It was damaged: the start went on from the one before and has written it again.
    again = "cd $OUT/checkpoints; mv round-1000000.h5 aside-round-1000000.h5; touch round-1000000.h5; exit 75"
    assert cluster.run(again).requeued == "requeue 7\n"


def test_checkpoints_may_lie_elsewhere(cluster):
    """The user has linked the folder of checkpoints to a larger disk, for example."""
    (cluster.folder / "scratch").mkdir()
    (cluster.folder / "out").mkdir()
    (cluster.folder / "out" / "checkpoints").symlink_to(cluster.folder / "scratch")
    assert cluster.run(GAIN + "exit 75").requeued == "requeue 7\n"
    assert "no round was gained" in cluster.run("exit 1").said


def test_restarts_are_limited(cluster):
    done = cluster.run(GAIN + "exit 75", SLURM_RESTART_COUNT="4")
    assert (done.code, done.requeued) == (75, "")
    assert done.said.endswith("job 7: ended with code 75, not started again: restarts=4 allows no more\n")


def test_a_job_that_cannot_be_put_back_says_so(cluster):
    done = cluster.run(GAIN + "exit 75", scontrol="#!/bin/bash\nexit 1\n")
    assert done.code == 75 and done.said.endswith("ended with code 75, it could not be put back into the queue\n")


def test_what_srun_is_given(cluster):
    cluster.run(DONE)
    assert cluster.read("srun.words").splitlines() == [
        "--mpi=pmi2", "--kill-on-bad-exit=1", "--ntasks=4", "--ntasks-per-node=2", "fedmpi", "run", "c.yaml",
        "threads=3", "a=1", "b={c: d e}", "--out", "out", "--resume", "auto", "--ranks", "4"]
    assert cluster.read("srun.environment").split() == ["3", "3", "loaded", "unset"]
    cluster.run(DONE, JobScript("c.yaml", mpi="pmix", out="my runs", command=("apptainer", "exec", "f.sif", "fedmpi")),
                out="my runs")
    assert cluster.read("srun.words").splitlines() == [
        "--mpi=pmix", "--kill-on-bad-exit=1", "--ntasks=4", "--ntasks-per-node=2", "apptainer", "exec", "f.sif",
        "fedmpi", "run", "c.yaml", "threads=3", "--out", "my runs", "--resume", "auto", "--ranks", "4"]
    cluster.run(DONE, JobScript("c.yaml", mpi="", out="out"))
    assert cluster.read("srun.words").splitlines()[:2] == ["--kill-on-bad-exit=1", "--ntasks=4"]


@pytest.mark.parametrize("nodes, ranks, hosts", [
    (2, 3, ["n1", "n1", "n2"]), (2, 5, ["n1"] * 3 + ["n2"] * 2), (3, 8, ["n1"] * 3 + ["n2"] * 3 + ["n3"] * 2)])
def test_ranks_that_do_not_divide(cluster, nodes, ranks, hosts):
    """The first nodes have one more each, with srun and with a launcher that takes a list of hosts."""
    names = SCONTROL.replace("n1\\nn2\\n", "".join(f"n{i + 1}\\n" for i in range(nodes)))
    for launcher in ("srun", "./bin/mpiexec"):
        cluster.tool("mpiexec", '#!/bin/bash\nexec -a mpiexec ./bin/srun "$@"\n')
        job = JobScript("c.yaml", nodes=nodes, ranks=ranks, launcher=launcher, out="out")
        assert cluster.run(DONE, job, scontrol=names, SLURM_JOB_NUM_NODES=str(nodes)).code == 0
        assert cluster.read("out.hosts").split() == hosts
        words = cluster.read("srun.words").splitlines()
        assert words[:words.index("fedmpi")] == (
            ["--mpi=pmi2", "--kill-on-bad-exit=1", f"--ntasks={ranks}", "--distribution=arbitrary"]
            if launcher == "srun" else ["-n", str(ranks), "-hostfile", "out.hosts"])


def test_a_start_with_other_nodes_is_refused(cluster):
    done = cluster.run(DONE, JobScript("c.yaml", out="out"), SLURM_JOB_NUM_NODES="3")
    assert done.code == 2 and not cluster.read("srun.words")
    assert done.said == ("job 7: ended with code 2, refused: it was planned for 2 nodes and got 3; change nodes= and "
                         "ranks=, too\n")


def test_a_launcher_of_ones_own(cluster):
    cluster.tool("jsrun", '#!/bin/bash\nexec ./bin/srun "$@"\n')
    cluster.run(DONE, JobScript("c.yaml", launcher="jsrun -n{ranks} 'a b'", out="out"))
    assert cluster.read("srun.words").splitlines()[:4] == ["-n4", "a b", "fedmpi", "run"]


def test_a_launcher_that_is_not_srun_is_told_to_stop(cluster):
    """Slurm tells the steps of srun to stop, but other launchers only by way of the script."""
    cluster.tool("ibrun", '#!/bin/bash\nexec ./bin/srun "$@"\n')
    done = cluster.run(GAIN + 'kill -TERM $PPID; until [ "$asked" ]; do sleep .01; done; until waits; do sleep .01; '
                       "done; exit 75", JobScript("c.yaml", launcher="ibrun", out="out"))
    assert (done.code, done.requeued) == (75, "") and "cut short by Slurm" in done.said


def test_the_result_of_an_earlier_start_does_not_finish_a_start_that_failed(cluster):
    """A finished run is started again with more rounds, and dies before it removes its result."""
    out = cluster.folder / "out"
    out.mkdir()
    for name in ("result.json", "log.txt"):
        (out / name).write_text("an earlier start\n")
    done = cluster.run("exit 127")
    assert (done.code, done.requeued) == (-15, "requeue 7\n")
    assert done.said.endswith("job 7: stopped with code 127 and starts again\n")
    assert cluster.run("told TERM; exit 0").said.endswith("code 1, cut short by Slurm: cancelled, preempted or out of "
                                                          "time\n")
    # It says that it is finished already.
    assert cluster.run("exit 0").said.endswith("job 7: ended with code 0, finished\n")
    assert cluster.run('rm "$OUT/result.json"; ' + DONE + "exit 137").said.endswith("ended with code 0, finished\n")


def test_a_chain_goes_on_until_its_run_is_over(cluster):
    """Slurm starts the later jobs however the earlier ones ended."""
    job = JobScript("c.yaml", out="out", chain=3)
    first = cluster.run(GAIN + "exit 75", job, script_words=("", "2"))
    assert (first.code, first.requeued) == (75, "")
    assert first.said.endswith("job 7: stopped with code 75 and the next job of the chain goes on\n")
    cut = cluster.run(GAIN + "told TERM; exit 75", job, script_words=("7", "1"), SLURM_JOB_ID="8")
    assert cut.said.endswith("job 8: ended with code 75, cut short by Slurm: cancelled, preempted or out of time\n")
    done = cluster.run(DONE, job, script_words=("7", "1"), SLURM_JOB_ID="9")
    assert done.code == 0 and done.said.endswith("job 9: ended with code 0, finished\n")
    (cluster.folder / "srun.words").unlink()
    late = cluster.run(DONE, job, script_words=("7", "0"), SLURM_JOB_ID="10")
    assert (late.code, late.said, cluster.read("srun.words")) == (0, "", "")
    # Another chain in the same folder, to more rounds say, is not held up.
    assert cluster.run(DONE, job, script_words=("", "2"), SLURM_JOB_ID="20").said.startswith("job 20: start 1")


def test_a_chain_ends_for_good_when_its_run_cannot_go_on(cluster):
    job = JobScript("c.yaml", out="out", chain=3)
    assert cluster.run(REFUSED, job, script_words=("", "2")).code == 2
    late = cluster.run(DONE, job, script_words=("7", "1"), SLURM_JOB_ID="8")
    assert (late.code, late.said) == (2, "")
    last = cluster.run("touch $OUT/checkpoints/round-000009.h5; exit 75", job, script_words=("5", "0"))
    assert last.code == 75 and last.said.endswith("not started again: it was the last job of the chain\n")


def test_a_rank_for_each_gpu_and_one_more_on_the_first_node(cluster):
    done = cluster.run(DONE, JobScript("c.yaml", gpus=2, out="a/out"), out="a/out")
    assert done.code == 0 and cluster.read("a/out.hosts").split() == ["n1", "n1", "n1", "n2", "n2"]
    assert cluster.read("srun.words").splitlines()[:4] == [
        "--mpi=pmi2", "--kill-on-bad-exit=1", "--ntasks=5", "--distribution=arbitrary"]
    assert cluster.read("srun.environment").split() == ["3", "3", "unset", "a/out.hosts"]
    assert cluster.read("scontrol.show") == "show hostnames\n"


def test_a_task_of_an_array_keeps_its_books_beside_its_folder(cluster):
    tasks = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "1"}
    job = JobScript("c.yaml", ("a=1",), array=(("b=2",), ("b=3", "c=4")), out="all")
    done = cluster.run(GAIN + DONE, job, out="all/1", **tasks)
    assert (done.code, done.said) == (0, "")
    assert cluster.read("all/1.txt") == ("job 9_1: start 1 on n[1-2]: c.yaml a=1 b=3 c=4\n"
                                         "job 9_1: ended with code 0, finished\n")
    assert cluster.read("all/summary.txt") == "fedmpi summary all\n" and not cluster.read("all/1.part")
    assert cluster.read("srun.words").splitlines()[4:] == [
        "fedmpi", "run", "c.yaml", "threads=3", "a=1", "b=3", "c=4", "--out", "all/1", "--resume", "auto", "--ranks",
        "4"]


def test_a_task_of_an_array_that_is_refused_has_its_place_in_the_summary(cluster):
    """The summary needs the program, which `setup` makes available."""
    job = JobScript("c.yaml", array=((), ()), out="all", setup='fedmpi() { echo "made available: $*"; }')
    done = cluster.run(DONE, job, out="all/1", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="1", SLURM_JOB_NUM_NODES="3")
    assert done.code == 2 and not cluster.read("srun.words")
    assert cluster.read("all/summary.txt") == "made available: summary all\n"


def test_a_task_of_an_array_goes_back_into_the_queue_alone(cluster):
    tasks = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0"}
    job = JobScript("c.yaml", array=((), ()), folders=("x/one two", "y"), out="all")
    done = cluster.run(GAIN + "exit 75", job, out="all/x/one two", **tasks)
    assert done.requeued == "requeue 9_0\n" and not cluster.read("all/summary.txt")
    assert cluster.read("all/x/one two.txt").endswith("job 9_0: stopped with code 75 and starts again\n")
