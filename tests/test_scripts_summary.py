"""The table that the tasks of a job array write when they end: the last one tells of all, however they end together."""
from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from fedmpi.slurm.script import JobScript
from tests.test_scripts import DONE, Cluster, Done

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="as on a node without util-linux")

# A summary that counts results when it begins, and ends once it may.
SETUP = """fedmpi() {
    echo begins >>steps
    found=$(ls all/*/result.json | wc -l)
    until [ -e "end.$SLURM_ARRAY_TASK_ID" ]; do sleep .01; done
    echo "$found finished"
}"""
JOB = JobScript("c.yaml", array=((),) * 4, out="all", setup=SETUP)


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return Cluster(tmp_path)


def run_task(cluster: Cluster, number: int) -> Done:
    return cluster.run(DONE, JOB, out=f"all/{number}", SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID=str(number))


def test_an_older_table_replaces_no_newer_one_and_one_task_at_most_waits(cluster):
    cluster.tool("flock", f'#!/bin/bash\n[ "$*" = 9 ] && echo waits >>steps\nexec {shutil.which("flock")} "$@"\n')
    expected = ["waits", "begins"] * 3

    def wait_for_steps(number: int) -> None:
        give_up = time.monotonic() + 30
        while cluster.read("steps").split() != expected[:number] and time.monotonic() < give_up:
            time.sleep(.01)

    def end_summaries(*numbers: int) -> None:
        for number in numbers:
            (cluster.folder / f"end.{number}").touch()

    with ThreadPoolExecutor() as pool:
        tasks = [pool.submit(run_task, cluster, 0)]
        wait_for_steps(2)
        tasks.append(pool.submit(run_task, cluster, 1))
        wait_for_steps(3)
        # Task 1 will tell of task 2, which ends before that begins, and not of task 3.
        end_summaries(2)
        tasks.append(pool.submit(run_task, cluster, 2))
        wait(tasks[2:], timeout=30)
        end_summaries(0)
        wait_for_steps(4)
        tasks.append(pool.submit(run_task, cluster, 3))
        wait_for_steps(5)
        end_summaries(1, 3)
        assert [task.result().code for task in tasks] == [0, 0, 0, 0]
    assert cluster.read("all/summary.txt") == "4 finished\n" and cluster.read("steps").split() == expected


@pytest.mark.parametrize("code", [127, 71])
def test_without_locks_each_task_writes_the_table(cluster, code):
    """There is no flock, or the file system knows no locks."""
    cluster.tool("flock", f"#!/bin/bash\necho no lock >&2\nexit {code}\n")
    for number in (1, 2):
        (cluster.folder / f"end.{number}").touch()
        done = run_task(cluster, number)
        assert (done.code, done.said) == (0, "") and "no lock" not in cluster.read(f"all/{number}.txt")
        assert cluster.read("all/summary.txt") == f"{number} finished\n"


def test_a_folder_of_somebody_else_that_takes_no_lock(cluster):
    (cluster.folder / "all" / ".summary.next").mkdir(parents=True)
    (cluster.folder / "end.1").touch()
    assert run_task(cluster, 1).code == 0 and cluster.read("all/summary.txt") == "1 finished\n"
    assert os.listdir(cluster.folder / "all" / ".summary.next") == []
