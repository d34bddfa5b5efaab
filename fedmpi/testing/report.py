"""Check a method against the contract, and say in one report what it does not keep and what to do."""
from __future__ import annotations

import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from fedmpi import registry
from fedmpi.errors import BadInput
from fedmpi.method import Method
from fedmpi.own_code.failures import describe_failure
from fedmpi.process_state import isolate_computation
from fedmpi.testing.contract import PROMISES, Promise
from fedmpi.testing.subject import Broken, Subject

WIDTH = 100
# What is said of an error that ended the checks of several promises.
SAME_ERROR = "the same error ends each of these checks"
REPAIR = ("repair the error, which has nothing to do with these promises; if it is about sizes, vmap or random "
          "numbers, make every tensor that a loss or a step uses one of its `args` or part of its state, use "
          "torch.where in place of `if`, and draw from `data` alone")


@dataclass
class ContractReport:
    """What came of the check of a method; str() of it is meant to be read."""
    method: str
    # promises that were kept
    kept: list[Promise] = field(default_factory=list)
    # promises that were not, each with what was found
    broken: list[tuple[Promise, str]] = field(default_factory=list)
    # what was left out, with the reason
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.

    @property
    def passed(self) -> bool:
        """Say whether all promises were kept."""
        return not self.broken

    def __str__(self) -> str:
        total = len(self.kept) + len(self.broken)
        lines = [f"{self.method}: {len(self.kept)} of {total} promises are kept ({self.seconds:.0f} s)"]
        for promises, found in self._group_errors():
            several = len(promises) > 1
            says, remedy = (SAME_ERROR, REPAIR) if several else (promises[0].says, promises[0].remedy)
            lines += [f"NOT KEPT  {', '.join(promise.name for promise in promises)}: {says}", *(
                fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
                for head, text in (("    found: ", found), ("    to do: ", remedy)))]
        lines += [f"left out  {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join([*lines, *(f"kept      {promise.name}: {promise.says}" for promise in self.kept)])

    def _group_errors(self) -> list[tuple[list[Promise], str]]:
        """Return what was found with the promises of which it was found: one error may end many checks. Errors that
        differ in numbers alone, such as sizes of tensors, count as one."""
        groups: dict[str, tuple[list[Promise], str]] = {}
        for promise, found in self.broken:
            groups.setdefault(re.sub(r"\d+", "0", found), ([], found))[0].append(promise)
        return list(groups.values())

    __repr__ = __str__


def check_method(method: type[Method] | str, /, settings: Mapping[str, object] | None = None, *,
                 others: Mapping[str, object] | None = None, idle: Mapping[str, str] | None = None,
                 by_position: str = "", by_client: Sequence[str] = (),
                 skip: Mapping[str, str] | None = None) -> ContractReport:
    """Check a method against the contract that every method of fedmpi keeps: `print(check_method(MyMethod))`.

    It runs on 8 clients with some of scikit-learn's digits, in this process, and takes some seconds.

    Args:
        method: the class, or its name as a configuration has it ("apfl:APFL")
        settings: settings under which the method shows within three rounds all that it does
        others: setting -> another value that must change three rounds, or (value, settings of both runs); without it a
            value is guessed
        idle: settings that cannot change three small rounds -> why
        by_position: why renumbered clients give other results after the first round: the server draws by position
        by_client: fields of Shared with a row for each client
        skip: names of promises that are not checked -> why

    Returns:
        the report, if all promises are kept.

    Raises:
        AssertionError: with the report, if a promise is not kept.
        BadInput: if there is no such method, setting or promise."""
    subject = make_subject(method, settings or {})
    subject.others, subject.idle = others or {}, idle or {}
    subject.by_position, subject.by_client = by_position, by_client
    left_out = dict(skip or {})
    refuse_unknown("skip", left_out, [promise.name for promise in PROMISES])
    for what, named in (("others", subject.others), ("idle", subject.idle)):
        refuse_unknown(what, named, subject.list_settings())
    report = check_subject(subject, left_out)
    if not report.passed:
        raise AssertionError(str(report))
    return report


def make_subject(method: type[Method] | str, settings: Mapping[str, object]) -> Subject:
    """Return what is checked. Raises BadInput if it is not a method, or its settings are wrong."""
    cls = registry.find_class("methods", method) if isinstance(method, str) else method
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise BadInput(f"check_method: {method!r} is not a class of methods; give a subclass of fedmpi.method.Method")
    subject = Subject(cls, method if isinstance(method, str) else f"{cls.__module__}:{cls.__qualname__}", settings)
    subject.make()
    return subject


def refuse_unknown(what: str, named: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise BadInput for a name that does not exist."""
    for name in named:
        if name not in known:
            raise BadInput(f"check_method: {what} names {name!r}, which does not exist; there are {', '.join(known)}")


def check_subject(subject: Subject, skip: Mapping[str, str]) -> ContractReport:
    """Check all promises but those to skip; return the report."""
    begin = time.perf_counter()
    report = ContractReport(subject.cls.title or subject.cls.__name__)
    report.skipped |= {**{f"setting {name}": why for name, why in subject.idle.items()}, **skip}
    with isolate_computation(), warnings.catch_warnings(action="ignore"):
        for promise in PROMISES:
            if promise.name in skip:
                continue
            try:
                promise.check(subject)
            except Broken as error:
                report.broken.append((promise, str(error)))
            # whatever the method's own code raises
            except Exception as error:
                report.broken.append((promise, describe_failure(error)))
            else:
                report.kept.append(promise)
    report.seconds = time.perf_counter() - begin
    return report
