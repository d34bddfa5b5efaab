"""Job scripts tell starts that failed from runs that were refused, and mind what happens before the launch."""
from __future__ import annotations

import pytest

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.slurm.refusal import mark_refusal
from fedmpi.slurm.script import JobScript
from fedmpi.storage.lock import Lock
from fedmpi.storage.run_status import read_outcome
from tests.runs import run_alone
from tests.test_scripts import DONE, GAIN, GIVEN_UP, REFUSED, Cluster


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


BEGAN = 'echo began >>"$OUT/log.txt"; '
NOT_REFUSED = "job 7: code 2, but fedmpi did not refuse the run: can all nodes start fedmpi? See above\n"


def test_a_program_that_cannot_be_started_is_a_failed_start(cluster):
    """srun ends with 2 if a node cannot execute the program, because its file system is gone, for example."""
    done = cluster.run("exit 2")
    assert (done.code, done.requeued) == (2, "")
    assert done.said.endswith(NOT_REFUSED + "job 7: ended with code 2, not started again: no round was gained\n")
    (cluster.folder / "out" / "log.txt").write_text("an earlier start\n")
    done = cluster.run("exit 2")
    assert done.requeued == "requeue 7\n"
    assert done.said.endswith(NOT_REFUSED + "job 7: stopped with code 2 and starts again\n")


def test_a_start_that_dies_on_its_way_does_not_end_the_job(cluster):
    """A start may die in MPI_Init, for example. The run's log says that an earlier start began and this one did not."""
    (cluster.folder / "out" / "checkpoints").mkdir(parents=True)
    (cluster.folder / "out" / "log.txt").write_text("an earlier start\n")
    for _ in range(3):
        done = cluster.run("exit 16", SLURM_RESTART_COUNT="1")
        assert done.requeued == "requeue 7\n" and done.said.endswith("job 7: stopped with code 16 and starts again\n")
        (cluster.folder / "scontrol.words").unlink()
    done = cluster.run("exit 16", SLURM_RESTART_COUNT="1")
    assert (done.code, done.requeued) == (16, "")
    assert done.said.endswith("16, not started again: 4 starts in a row died before the run began\n")
    assert cluster.run(BEGAN + GAIN + "exit 75").requeued and not cluster.read("out/failed-starts")
    assert "no round was gained" in cluster.run(BEGAN + "exit 1").said


@pytest.mark.parametrize("does", [BEGAN + "exit 75", GIVEN_UP + "exit 137"])
def test_a_start_that_is_asked_to_stop_in_its_first_round_does_not_end_the_job(cluster, does):
    """It was preempted. The third such start in a row ends the job: its rounds may be longer than its time."""
    def stopped() -> str:
        (cluster.folder / "scontrol.words").unlink(missing_ok=True)
        done = cluster.run(does)
        return done.said.splitlines()[-1] + " " + done.requeued
    again, over = "job 7: stopped with code 75 and starts again requeue 7\n", "no round was gained "
    assert [stopped(), stopped()] == [again, again] and stopped().endswith(over)
    # A start that gains a round, and one that fails, end the row.
    for other in (BEGAN + GAIN + "exit 75", BEGAN + "exit 1"):
        cluster.run(other)
        assert not (cluster.folder / "out" / "failed-starts").exists()
        assert [stopped(), stopped()] == [again, again] and stopped().endswith(over)
    # A job that is submitted after the end counts anew.
    assert [stopped(), stopped()] == [again, again]


def test_starts_that_die_and_those_that_are_stopped_count_apart(cluster):
    (cluster.folder / "out" / "checkpoints").mkdir(parents=True)
    (cluster.folder / "out" / "log.txt").write_text("an earlier start\n")
    for does in ("exit 16", BEGAN + "exit 75", "exit 16", BEGAN + "exit 75", "exit 16"):
        assert cluster.run(does).said.endswith("and starts again\n")
    assert cluster.run(BEGAN + "exit 75").said.endswith("code 75, not started again: no round was gained\n")


def test_a_given_up_round_does_not_excuse_a_later_start_that_fails(cluster):
    """Only what this start has logged counts."""
    assert cluster.run(GIVEN_UP + "exit 137").requeued == "requeue 7\n"
    done = cluster.run(BEGAN + "exit 137")
    assert done.said.endswith("job 7: ended with code 137, not started again: no round was gained\n")


def test_a_chain_goes_on_after_a_start_without_a_round(cluster):
    job = JobScript("c.yaml", out="out", chain=3)
    first = cluster.run("exit 75", job, script_words=("", "2"))
    assert first.said.endswith("job 7: stopped with code 75 and the next job of the chain goes on\n")
    assert cluster.run(DONE, job, script_words=("7", "1"), SLURM_JOB_ID="8").said.endswith("code 0, finished\n")


def test_a_first_start_that_is_killed_on_its_way_is_tried_again(cluster):
    """A launcher that loses a rank kills the others. A first start that ends by itself is not set up well."""
    for code in (137, 9, 137):
        done = cluster.run(f"rmdir $OUT/checkpoints $OUT 2>/dev/null; exit {code}")
        assert done.requeued == "requeue 7\n" and done.said.endswith(f"7: stopped with code {code} and starts again\n")
        (cluster.folder / "scontrol.words").unlink()
    said = cluster.run("exit 137").said
    assert said.endswith("137, not started again: 4 starts in a row died before the run began\n")
    for code in (128, 193, 255, 16):
        done = cluster.run(f"exit {code}", out=f"of-{code}", job=JobScript("c.yaml", out=f"of-{code}"))
        assert (done.code, done.requeued) == (code, "") and "no round was gained" in done.said


def test_the_mark_of_a_refusal_is_that_of_this_start(cluster):
    (cluster.folder / "out.refused-7").write_text("of an earlier start\n")
    assert "code 2, but fedmpi did not refuse the run" in cluster.run("exit 2").said
    assert cluster.run(REFUSED).said.endswith("job 7: ended with code 2, the run was refused\n")
    # A worker has refused the run, and srun says 137 when it ends the others.
    assert cluster.run(REFUSED.replace("2", "137")).said.endswith("job 7: ended with code 2, the run was refused\n")
    assert not [*cluster.folder.glob("out.refused*")]


def test_a_second_job_in_the_folder_of_a_live_run_says_so(cluster):
    """The run goes on, so nothing is said that would end a chain, or count as a failure of the run."""
    in_use = REFUSED.replace("echo refused", "echo in use")
    for job, words in ((None, ()), (JobScript("c.yaml", out="out", chain=2), ("", "1"))):
        done = cluster.run(in_use, job, script_words=words)
        assert (done.code, done.requeued) == (2, "") and not cluster.read("out.chain")
        assert done.said.endswith("job 7: stopped with code 2: another job runs it\n")


def test_a_configuration_of_several_words_is_one_in_the_log(cluster):
    job = JobScript("my project/it's.yaml", ("a=1",), array=((),), out="all")
    cluster.run(DONE, job, out="all/0", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="0")
    assert read_outcome(cluster.folder / "all" / "0").settings == "a=1"


def test_ranks_get_what_setup_has_set(cluster):
    """After `sbatch --export=NONE`, Slurm tells srun to pass on nothing."""
    cluster.run('echo "$SLURM_EXPORT_ENV $MODULE" >passed; ' + DONE, SLURM_EXPORT_ENV="NONE")
    assert cluster.read("passed") == "ALL loaded\n"


@pytest.mark.parametrize("chain", [0, 2])
def test_a_job_that_is_asked_to_stop_while_it_is_set_up_starts_again(cluster, chain):
    """The notice of the end may come while modules are loaded."""
    job = JobScript("c.yaml", out="out", chain=chain, setup='kill -USR1 "$BASHPID"')
    done = cluster.run(DONE, job, script_words=("", "1") if chain else ())
    assert (done.code, done.requeued) == ((75, "") if chain else (-15, "requeue 7\n"))
    assert done.said == ("job 7: asked to stop before the run was launched\njob 7: stopped with code 75 and "
                         + ("the next job of the chain goes on\n" if chain else "starts again\n"))
    assert not cluster.read("srun.words")
    # This ends, too.
    last = cluster.run(DONE, job, SLURM_RESTART_COUNT="50", script_words=("7", "0") if chain else ())
    assert last.code == 75 and "not started again: " in last.said


def test_a_refused_run_leaves_the_mark_that_its_script_asks_for(bench, monkeypatch, tmp_path, capsys):
    mark = tmp_path / "mark"
    monkeypatch.setenv("FEDMPI_REFUSAL_FILE", str(mark))
    assert run_alone(bench.config, ["rounds=x"], bench.out("marked")) == 2 and mark.read_text() == "refused\n"
    bench.out("marked").mkdir()
    lock = Lock(bench.out("marked"))
    assert run_alone(bench.config, [], bench.out("marked"), "auto") == 2 and mark.read_text() == "in use\n"
    lock.release()
    mark.unlink()
    mark_refusal(FedmpiError.code)
    assert not mark.exists()
    monkeypatch.setenv("FEDMPI_REFUSAL_FILE", "/nowhere/at/all")
    mark_refusal(BadInput.code)
    monkeypatch.delenv("FEDMPI_REFUSAL_FILE")
    mark_refusal(BadInput.code)
