"""A pytest plugin that records which lines each test, and each fixture of a wider scope, runs, and their costs."""
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.mutants import tracer

WIDE = ("class", "module", "package", "session")


def seconds() -> float:
    """Return the CPU seconds of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def pack(lines) -> str:
    """Write a set of line numbers as one hexadecimal number."""
    return f"{sum(1 << line for line in set(lines)):x}"


def unpack(text: str) -> set[int]:
    bits = bin(int(text, 16))[:1:-1]
    return {line for line, bit in enumerate(bits) if bit == "1"}


class Recorder:
    """Records one test file; `write` stores the record as JSON."""

    def __init__(self, root: str, folder: str):
        self.folder = Path(folder)
        # [name, seconds so far] of each context that waits
        self.stack: list[list] = []
        self.seconds: dict[str, float] = {}
        self.tests: dict[str, dict] = {}
        self.tracer = tracer.begin(root, folder)
        self.enter("import")

    def enter(self, context: str):
        """Count time for `context` from now on."""
        self.mark = seconds()
        (self.folder / "context").write_text(context)
        self.tracer.enter(context)

    def within(self, context: str):
        """Run the block as another context."""
        outer = self.tracer.context
        self.book()
        self.enter(context)
        try:
            return (yield)
        finally:
            self.book()
            self.enter(outer)

    def book(self):
        context = self.tracer.context
        self.seconds[context] = self.seconds.get(context, 0.) + seconds() - self.mark

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.tests[item.nodeid] = {"fixtures": [], "outcome": "passed",
                                   "slow": any(item.iter_markers("slow")) or any(item.iter_markers("long"))}
        self.item = item.nodeid
        return (yield from self.within(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope not in WIDE:
            return (yield)
        return (yield from self.within(f"fixture {fixturedef.baseid}::{fixturedef.argname}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        for name in item.fixturenames:
            for definition in item._fixtureinfo.name2fixturedefs.get(name, ())[-1:]:
                if definition.scope in WIDE:
                    self.tests[item.nodeid]["fixtures"].append(f"fixture {definition.baseid}::{name}")
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.tests[report.nodeid]["outcome"] = "failed"
        elif report.skipped:
            self.tests[report.nodeid]["outcome"] = "skipped"

    def write(self, path: str):
        self.tracer.stop()
        self.book()
        tracer.collect(self.tracer.folder, self.tracer.found)
        lines = {context: {file: pack(found) for file, found in files.items()}
                 for context, files in self.tracer.found.items() if files}
        Path(path).write_text(json.dumps({"tests": self.tests, "lines": lines, "seconds": {
            context: round(cpu, 3) for context, cpu in self.seconds.items()}}))
