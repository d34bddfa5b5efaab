"""Which tests may notice a mutant, and in which order they are run."""
from __future__ import annotations

import ast
import re
from functools import cache, cached_property
from pathlib import Path

from tests.mutants.source import Source
from tests.mutants.suite import Suite, Test

# These take the most seconds and notice the fewest faults.
LAST = ("tests/docs", "tests/slurm", "tests/benchmarks", "tests/extension")
# CPU seconds to load a further test file.
LOADING_S = .1
# CPU seconds of tests in the first processes; later ones have the rest of the budget.
STAGES_S = (2.5, 10.)


class Choice:
    """Chooses tests for places in fedmpi, by the map of a suite."""

    def __init__(self, suite: Suite):
        self.suite = suite
        self.of_file: dict[str, set[str]] = {}
        for test in suite.tests.values():
            self.of_file.setdefault(test.file, set()).add(test.name)

    @cached_property
    def parsed(self) -> dict[str, Source]:
        return {path: Source(text) for path, text in self.suite.texts.items()}

    @cached_property
    def words(self) -> dict[str, list[tuple[str, int]]]:
        """Return where each name occurs in lines that some test runs."""
        found: dict[str, list] = {}
        for path, table in self.suite.lines.items():
            texts = self.suite.texts.get(path, "").splitlines()
            # Lines of a template run, too.
            for line in table if texts else ():
                for word in set(re.findall(r"[A-Za-z_]\w*", texts[line - 1])):
                    found.setdefault(word, []).append((path, line))
        return found

    @cache  # noqa: B019  (there is one choice as long as the command lives)
    def traceable(self, path: str) -> set[int]:
        """Return the lines that a tracer can see, which are not all lines of a statement."""
        found, todo = set(), [compile(self.suite.texts[path], path, "exec")]
        while todo:
            code = todo.pop()
            found |= {line for *_, line in code.co_lines() if line}
            todo += [c for c in code.co_consts if hasattr(c, "co_lines")]
        return found

    def run_by(self, path: str, lines) -> set[str]:
        table = self.suite.lines.get(path, {})
        return set().union(*(table.get(line, ()) for line in lines))

    def covering(self, path: str, first: int, last: int) -> tuple[set[str], set[str]]:
        """Return the tests that run a place, and others that may notice it."""
        # The tests of a template are all tests that render it.
        if not path.endswith(".py"):
            return self.run_by(path, self.suite.lines.get(path, {})), set()
        lines = set(range(first, last + 1))
        if not lines & self.traceable(path):
            lines |= self.statement(path, first)
        around = [f for f in self.parsed[path].functions if f[0] <= first <= f[2]]
        if not around or first < around[-1][1]:
            direct, more = self.outside(path, first, around)
        else:
            direct, more = self.run_by(path, lines), set()
            # The map has no tests for lines that are newer.
            if lines & self.suite.fresh.get(path, set()):
                direct |= self.run_by(path, range(around[-1][1], first + 1))
            for file in set().union(*(self.suite.imports.get(path, {}).get(line, ()) for line in lines)):
                more |= self.of_file.get(file, set())
        # Another test of the file may have prepared something.
        for file in {self.suite.tests[name].file for name in direct}:
            more = more | self.of_file[file]
        return direct, more - direct

    def statement(self, path: str, line: int) -> set[int]:
        """Return the lines of the innermost statement around a line, without those of its body."""
        best = range(line, line + 1)
        for node in ast.walk(self.parsed[path].tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
                body = getattr(node, "body", None)
                last = body[0].lineno - 1 if body and body[0].lineno > line else node.end_lineno
                # Inner statements come later.
                best = range(node.lineno, last + 1)
        return set(best)

    def outside(self, path: str, line: int, around: list) -> tuple[set[str], set[str]]:
        """Do as `covering` for a line that runs on import: a default value, or a name's value in a module or class."""
        module = self.run_by(path, self.suite.lines.get(path, {}))
        if around:
            direct = self.run_by(path, range(around[-1][1], around[-1][2] + 1))
            return direct, module - direct
        names = {name for node in ast.walk(self.parsed[path].tree) if isinstance(node, ast.Assign | ast.AnnAssign)
                 and node.lineno <= line <= node.end_lineno
                 for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                 for name in re.findall(r"\w+", ast.unparse(target))}
        direct = set()
        for name in names:
            for where, n in self.words.get(name, ()):
                direct |= self.suite.lines[where][n]
        return direct, module - direct

    def cost(self, test: Test) -> float:
        return test.cpu + sum(self.suite.fixtures.get(f, 0.) for f in test.fixtures)

    def order(self, path: str, direct: set[str], more: set[str]) -> list[Test]:
        """Sort tests: cheap and specific ones first, those of the same package before others, variants spread."""
        package = path.split("/")[1].removesuffix(".py")
        stem = Path(path).stem

        def score(test: Test) -> float:
            own = f"/{package}/" in test.file or stem in Path(test.file).stem
            value = (self.cost(test) + .05) * (1 + test.breadth / 300) * (1 if own else 3)
            return value * 1000 if test.slow or test.file.startswith(LAST) else value
        found = []
        for names in (direct, more):
            tests = sorted((score(self.suite.tests[n]), n) for n in names)
            seen: dict[str, int] = {}
            ranked = []
            for value, name in tests:
                function = self.suite.tests[name].function
                seen[function] = seen.get(function, 0) + 1
                ranked.append((value * seen[function], name))
            found += [self.suite.tests[name] for _, name in sorted(ranked)]
        return found

    def stages(self, path: str, first: int, last: int, budget: float) -> list[tuple[list[str], float]]:
        """Return lists of tests that run one after the other, each in its own process, with the CPU seconds of each."""
        left, stages, spent = self.order(path, *self.covering(path, first, last)), [], 0.
        for limit in (*STAGES_S, budget):
            names, rest, cost, ready = [], [], 0., set()
            for test in left:
                parts = {test.file: LOADING_S} | {f: self.suite.fixtures.get(f, 0.) for f in test.fixtures}
                further = test.cpu + sum(seconds for part, seconds in parts.items() if part not in ready)
                # The very first test is run even if it alone costs more than the budget.
                alone = not stages and not names and limit == budget
                if cost + further <= min(limit, budget - spent) or alone:
                    names.append(test.name)
                    cost += further
                    ready |= set(parts)
                else:
                    rest.append(test)
            left = rest
            if names:
                stages.append((names, cost))
                spent += cost
        return stages
