"""The suite's budget: which tests run at the same time, and the processor time that each directory takes.

The output of `pytest` ends with what FEDMPI_FAILED_PARTS holds, the checks before the suite that failed (.ci/run), and
with a table of CPU seconds. They include child processes (ranks) and depend little on what else the machine does. A
test that takes more than LIMIT_S says why, `@pytest.mark.slow("reason")`, and `-m "not slow"` leaves it out."""
from __future__ import annotations

import gc
import os
import re
import resource
import time
from collections import defaultdict
from pathlib import Path

import pytest

# CPU seconds from which a test has to be marked as slow
LIMIT_S = 5.
# processes that run tests; each takes about .7 GB
MAX_WORKERS = 8
# tests that the end of the output names
MAX_NAMED = 10
# The table at the end has a number for each file in place of each directory.
BY_FILE = os.environ.get("FEDMPI_TEST_BUDGET") == "files"
METHODS = {path.stem for path in Path(__file__).parents[1].glob("fedmpi/methods/*.py")}
SPREAD = ("tests/methods/test_contract.py", "tests/clients/test_after.py", "tests/docs/test_docs.py",
          "tests/test_decomposition.py")
TOGETHER = {"report": [f"tests/report/test_{name}.py" for name in ("figures", "page", "report")],
            "slurm": [f"tests/slurm/test_{name}.py" for name in ("jobs", "launches")]}      # some preempt others' jobs


def spent_s() -> float:
    """Return the CPU seconds of this process and of those of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_configure(config):
    config.addinivalue_line("markers", f"slow(reason): takes more than {LIMIT_S:g} CPU seconds, and why")
    config.pluginmanager.register(Books(), "budget")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config) -> int:
    """Return the number of processes: one a core, and one more if tests wait for the jobs of a Slurm.

    Tests of single files run in this process."""
    asked = config.args_source is pytest.Config.ArgsSource.ARGS
    if asked and not any(Path(word).is_dir() for word in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)) + (os.environ.get("FEDMPI_TEST_SLURM") == "1"), MAX_WORKERS)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, which would look at all that is imported again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Distribute groups of tests in the order in which they were collected."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)
    config.option.loadscopereorder = False
    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """Return the name of the group of a test. A group runs in one process, so that its fixtures are made only once.

    A group is a file, or all files of an entry of TOGETHER. In a file of SPREAD it is a method or a page."""
    path, _, test = nodeid.partition("::")
    if path in SPREAD:
        words = set(re.split(r"[][-]", test))
        return f"{path} {min(words & METHODS, default=test)}"
    return next((name for name, paths in TOGETHER.items() if path in paths), path)


def pytest_collection_modifyitems(items):
    """Begin with the jobs of a Slurm, which mostly wait, and with the groups that have a slow test, so that none of
    them is left for the end."""
    slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (group_of(item.nodeid) != "slurm", group_of(item.nodeid) not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.began = spent_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.user_properties = [*report.user_properties, ("cpu", spent_s() - item.began),
                                  ("slow", item.get_closest_marker("slow") is not None)]
    return report


class Books:
    """The CPU seconds of the tests."""

    def __init__(self):
        # test -> CPU seconds, and whether it is marked as slow
        self.tests = {}

    def pytest_runtest_logreport(self, report):
        told = dict(report.user_properties)
        if report.when == "teardown" and "cpu" in told:
            self.tests[report.nodeid] = told["cpu"], told["slow"]

    def pytest_terminal_summary(self, terminalreporter):
        say = terminalreporter.write_line
        if failed := os.environ.get("FEDMPI_FAILED_PARTS"):
            say(f"Before this suite failed:\n{failed}")
        places = defaultdict(float)
        for name, (cpu, _) in self.tests.items():
            path = Path(name.split("::")[0])
            places[str(path.parent if path.parent.name != "tests" and not BY_FILE else path)] += cpu
        if sum(places.values()) < LIMIT_S:
            return
        say(f"CPU seconds, {sum(places.values()):.0f} in all: " + ", ".join(
            f"{place} {cpu:.0f}" for place, cpu in sorted(places.items(), key=lambda p: -p[1]) if cpu >= 1))
        late = sorted((cpu, name) for name, (cpu, slow) in self.tests.items() if cpu > LIMIT_S and not slow)
        for cpu, name in late[:-MAX_NAMED - 1:-1]:
            say(f"{cpu:.1f} CPU seconds, which no mark `slow` explains: {name}")
