"""Choose faults: mechanical ones drawn by a seed, or the hand-written ones."""
from __future__ import annotations

import importlib
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.mutants.judge import Mutant, package_of
from tests.mutants.operators import Site, find_sites
from tests.mutants.source import Source
from tests.mutants.undefined import list_undefined

# Mutants of each package at least.
LEAST = 10
FAULTS = Path(__file__).parent / "faults"


class DoesNotApply(Exception):
    """A hand-written fault whose code has changed."""


def sites_of(root: Path, packages: Iterable[str]) -> dict[str, list[Site]]:
    """List the mechanical mutants of some packages; without names, of all."""
    found: dict[str, list[Site]] = {}
    for path in sorted((root / "fedmpi").rglob("*.py")):
        name = str(path.relative_to(root))
        package = package_of(name)
        if package in packages or not packages:
            found.setdefault(package, []).extend(find_sites(name, path.read_text()))
    return {package: sites for package, sites in sorted(found.items()) if sites}


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Divide a number of mutants in proportion to the packages' sizes, but give each package LEAST if possible."""
    least = min(LEAST, count // len(sizes))
    given = {package: min(least, size) for package, size in sizes.items()}
    total = sum(sizes.values())
    # Give one more to the package that is furthest below its proportion.
    for _ in range(min(count, total) - sum(given.values())):
        package = max((p for p in sizes if given[p] < sizes[p]), key=lambda p: (sizes[p] / total * count - given[p], p))
        given[package] += 1
    return given


def draw(root: Path, packages: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """Draw mechanical mutants; the same ones for the same seed and code."""
    found, chance = sites_of(root, packages), random.Random(seed)
    drawn = []
    for package, share in shares({package: len(sites) for package, sites in found.items()}, count).items():
        drawn += chance.sample(found[package], share)
    texts = {site.path: Source((root / site.path).read_text()) for site in drawn}
    return [plant(texts[site.path], site) for site in drawn]


def plant(source: Source, site: Site) -> Mutant:
    """Return the mutant that changes a file's text at one place."""
    text = source.replace(site.begin, site.end, site.new)
    last = source.data.count(b"\n", 0, site.end) + 1
    now = "\n".join(text.splitlines()[site.line - 1:site.line + site.new.count("\n")]).strip()
    return Mutant(site.path, site.line, last, text, source.line(site.line), now, site.operator, site.scope)


def package_lists(packages: Iterable[str]) -> list[str]:
    """Return the names of lists in faults/: PACKAGE, or PACKAGE_MORE."""
    names = sorted(p.stem for p in FAULTS.glob("*.py") if p.stem != "__init__")
    return [n for n in names if not packages or any(belongs(n, package) for package in packages)]


def belongs(listed: str, package: str) -> bool:
    """Say whether a list in faults/ is one of a package, whose name may hold an underscore, too."""
    return f"{listed}_".startswith(f"{package}_")


def hand_written(root: Path, packages: Iterable[str]) -> list[Mutant]:
    """Read the lists of faults and apply each. Raises DoesNotApply with all faults that cannot be applied."""
    planted, problems = [], []
    for listed in package_lists(packages):
        faults = importlib.import_module(f"tests.mutants.faults.{listed}").FAULTS
        for name, old, new in faults:
            try:
                planted.append(apply(root, name, old, new))
                if not belongs(listed, planted[-1].package):
                    raise DoesNotApply("belongs to another package")
            except DoesNotApply as error:
                problems.append(f"faults/{listed}.py: {name}: {old!r}: {error}")
    if problems:
        raise DoesNotApply("\n".join(problems))
    return planted


@cache
def parsed(text: str) -> Source:
    return Source(text)


def apply(root: Path, name: str, old: str, new: str) -> Mutant:
    """Plant one fault. Its name is `module:definition`, `module:`, or `path:` of a template."""
    module, _, definition = name.partition(":")
    path = module.replace(".", "/")
    path = next((p for p in (f"{path}.py", f"{path}/__init__.py", module) if (root / p).is_file()), None)
    if path is None:
        raise DoesNotApply("there is no such module")
    source = parsed((root / path).read_text())
    if definition and definition not in source.definitions:
        raise DoesNotApply("there is no such definition")
    begin, end = source.segment(definition)
    text = source.data[begin:end].decode()
    if text.count(old) != 1 or not old:
        raise DoesNotApply(f"stands {text.count(old)} times in its text, not once")
    if old == new:
        raise DoesNotApply("changes nothing")
    at = begin + len(text[:text.index(old)].encode())
    line = source.data.count(b"\n", 0, at) + 1
    mutant = plant(source, Site(path, line, at, at + len(old.encode()), new, "own", definition))
    if path.endswith(".py"):
        refuse_other_errors(mutant, old, new, source)
    return mutant


def refuse_other_errors(mutant: Mutant, old: str, new: str, source: Source) -> None:
    """Raise DoesNotApply if the mutant fails by a SyntaxError, or by a NameError, which any test would notice."""
    try:
        compile(mutant.text, mutant.path, "exec")
    except SyntaxError as error:
        raise DoesNotApply(f"the file is not Python any more: {error}") from None
    more = set(re.findall(r"[A-Za-z_]\w*", new)) - set(re.findall(r"[A-Za-z_]\w*", old))
    if more and (names := list_undefined(mutant.text) - list_undefined(source.whole)):
        raise DoesNotApply(f"there is no {' or '.join(sorted(names))} in the file")
