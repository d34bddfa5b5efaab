"""The suite's budget: which tests run beside each other, and the processor time that each directory takes.

`pytest` ends with a table of CPU seconds, those of child processes (ranks) among them, which depend little on what else
the machine does. A test that takes more than LIMIT_S says why: `@pytest.mark.slow("reason")`; `-m "not slow"` leaves
such tests out."""
from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from pathlib import Path

import pytest

LIMIT_S = 5.        # CPU seconds from which a test has to be marked as slow
MOST = 8            # processes that run tests: each takes about .7 GB
TOP = 10            # tests named at the end
TESTS = Path(__file__).parent


def spent_s() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_configure(config):
    config.addinivalue_line("markers", f"slow(reason): takes more than {LIMIT_S:g} CPU seconds, and why")
    config.pluginmanager.register(Books(), "budget")


def pytest_xdist_auto_num_workers(config) -> int:
    """One process more than cores, since some tests wait; none beside this one where only some files are asked for."""
    asked = config.args_source is pytest.Config.ArgsSource.ARGS
    if asked and not any(Path(word).is_dir() for word in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)) + 1, MOST)


@pytest.hookimpl(tryfirst=True)      # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Keep what shares a fixture in one process: the tests of a file, or, in a file that says so by `SPREAD = "name"`,
    those with the same parameter `name`."""
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        group, spread = item.path.relative_to(TESTS).as_posix(), getattr(item.module, "SPREAD", None)
        if spread:
            group += f":{item.callspec.params.get(spread)}" if hasattr(item, "callspec") else f":{item.name}"
        item.add_marker(pytest.mark.xdist_group(group))


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
    """What the tests have taken."""

    def __init__(self):
        self.tests = {}      # test -> CPU seconds, marked as slow

    def pytest_runtest_logreport(self, report):
        told = dict(report.user_properties)
        if report.when == "teardown" and "cpu" in told:
            self.tests[report.nodeid.split("@")[0]] = told["cpu"], told["slow"]

    def pytest_terminal_summary(self, terminalreporter):
        places = defaultdict(float)
        for name, (cpu, _) in self.tests.items():
            path = Path(name.split("::")[0])
            places[str(path.parent if path.parent.name != "tests" else path)] += cpu
        if sum(places.values()) < LIMIT_S:
            return
        say = terminalreporter.write_line
        say(f"CPU seconds, {sum(places.values()):.0f} in all: " + ", ".join(
            f"{place} {cpu:.0f}" for place, cpu in sorted(places.items(), key=lambda p: -p[1]) if cpu >= 1))
        late = sorted((cpu, name) for name, (cpu, slow) in self.tests.items() if cpu > LIMIT_S and not slow)
        for cpu, name in late[:-TOP - 1:-1]:
            say(f"{cpu:.1f} CPU seconds, which no mark `slow` explains: {name}")
