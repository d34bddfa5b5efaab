"""Does this machine compute what others do? Small runs on scikit-learn's digits are repeated here: are their digests
those that are published, do their losses agree within rounding, or are they wrong? All ranks take part, rank 0 prints.
`rerun.py` asks the same of any finished run."""
from __future__ import annotations

import io
import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedmpi import __version__, errors
from fedmpi.comm.transport import Transport
from fedmpi.config.load import parse_yaml, read_yaml
from fedmpi.context import RankContext
from fedmpi.data.abandoned import read_machine_code
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.json_values import JsonObject
from fedmpi.paths import expand_user
from fedmpi.progress import write_stdout
from fedmpi.ranks import gather_objects, read_package_version
from fedmpi.run_request import RunRequest
from fedmpi.session import lead_command, run_on_all_ranks, serve_as_worker, share_text
from fedmpi.storage import run_files
from fedmpi.storage.atomic import atomic, describe_reason
from fedmpi.storage.lock import read_start_mark
from fedmpi.text import format_columns, format_pairs, format_spans

TABLE = Path(__file__).with_name("published_hashes.yaml")
# how the name of a workplace begins
WORKPLACE = ".fedmpi-verify-"
# Hexadecimal digits of a digest that are compared: as many as a run prints.
DIGITS = 16
# A loss whose relative difference from the published one is larger comes from another computation.
LOSS_ROUNDING = 1e-4
KNOWN, CLOSE, WRONG, UNKNOWN = "known", "agrees within rounding", "WRONG", "not published"

CASE_SETTINGS: JsonObject = {
    "rounds": 3, "seed": 1, "device": "cpu", "threads": 1, "comm": {"timeout": 0},
    "data": {"clients": 10, "partition": {"name": "dirichlet", "beta": .3}}, "model": {"name": "mlp", "hidden": 32},
    "train": {"lr": .05, "steps": 8, "participation": .7}, "evaluate": {"every": 0, "after_training": "off"},
    "checkpoint": {"every": 0}}
# what configs/quickstart.yaml says, in place of CASE_SETTINGS' data, model and training
QUICKSTART = ["rounds=100", "seed=0", "data.clients=40", "data.fraction=.5", "model.hidden=64",
              "data.partition={name: pathological, classes_per_client: 3}", "method={name: fedmhc, M: 4, lam: 2}",
              "train={lr: .1, batch: 10, epochs: 2, steps: null, participation: 1}"]
# Between them: both engines, sums, k-means, inner products, medians, convolutions, private states
RUNS = {
    "fedavg": ["method=fedavg", "engine=loop", "train.momentum=.5"],
    "fedavg-vmap": ["method=fedavg", "engine=vmap"],
    "fedavg-median": ["method=fedavg", "server.aggregation=median", "attack={kind: sign_flip}", "faults.drop=.2"],
    "fedmhc": ["method={name: fedmhc, M: 3}"],
    # The defaults of 0.1, whose digests are published.
    "fedamp": ["method={name: fedamp, alpha: 1, sigma: 1}"],
    "fedah": ["method=fedah"],
    "ditto-images": ["method=ditto", "model={name: 'fedmpi.commands.verify:Images'}", "engine=loop"],
    "quickstart": QUICKSTART}


class FinalValues(NamedTuple):
    """What a run ended with."""
    digest: str
    # mean test loss over the clients, nats
    loss: float


class Images(nn.Sequential):
    """A small convolutional network for the digits, which are stored as 64 features."""

    def __init__(self) -> None:
        super().__init__(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(72, 10))


def verify_command(folder: str, add: bool) -> int:
    """Verify on all ranks. Returns 1 if a run is wrong or does not repeat, else 0."""
    return run_on_all_ranks(lambda world: verify_machine(world, folder, add))


def verify_machine(world: Transport, folder: str, add: bool = False) -> int:
    """Perform the runs, print what is thought of each, and with `add` publish them."""
    here = describe_environment()
    refuse_others(world, here)
    with make_workplace(world, folder, CASE_SETTINGS) as place:
        ended = {name: perform(world, place, name, words) for name, words in RUNS.items()}
        again = perform(world, place, "again", next(iter(RUNS.values())))
    code: int = errors.FINISHED
    if world.rank == 0:
        table = read_published_hashes()
        found = {name: compare_digest(table, here, name, run) for name, run in ended.items()}
        write_stdout(f"{show_hashes(here, ended, found)}\n")
        steady = again == next(iter(ended.values()))
        stale = find_stale(table, here, ended)
        write_stdout(f"{summarise_verdicts(found, steady, next(iter(RUNS)), again.digest, stale)}\n")
        code = errors.FAILED if not steady or any(v.startswith(WRONG) for v in found.values()) else errors.FINISHED
        if add:
            write_stdout(publish(here, ended, table, steady))
    return int(share_text(world, str(code)))


def describe_environment() -> dict[str, str]:
    """Return what the bits of a run on the CPU depend on beside its configuration."""
    build, blas = torch.__config__.show(), np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {"fedmpi": __version__, "machine": platform.machine(), "vendor": read_vendor(),
            "vectors": torch.backends.cpu.get_cpu_capability(), "torch": str(torch.__version__),
            "torch's BLAS": search_group(r"Math Kernel Library Version (\S+)", build, "MKL ")
            or search_group(r"BLAS_INFO=(\w+)", build) or "unknown",
            "torch's compiler": search_group(r"- ((?:GCC|clang|MSVC)\s\S+)", build) or "unknown",
            "numpy": np.__version__, "numpy's BLAS": f"{blas['name']} {blas.get('version', '')}".strip(),
            "scikit-learn": read_package_version("scikit-learn", "none")}


def search_group(pattern: str, text: str, before: str = "") -> str:
    """Return the first group of a pattern in a text, behind `before`; "" if it does not match."""
    match = re.search(pattern, text)
    return before + match[1] if match else ""


def read_vendor() -> str:
    """Return who made the processor: libraries choose by it, too."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    return search_group(r"(?m)^(?:vendor_id|CPU implementer)\s*: (\S+)", text) or platform.processor() or "unknown"


def refuse_others(world: Transport, here: JsonObject) -> None:
    """Refuse at rank 0 ranks that run on other processors or libraries: a digest would be of no environment."""
    for rank, them in enumerate(gather_objects(world, here)):
        odd = next((name for name in here if them[name] != here[name]), None)
        if odd:
            raise BadInput(f"rank {rank} has {odd} {them[odd]}, rank 0 has {here[odd]}: there is one digest for one "
                           "kind of machine; start all ranks on nodes of one kind")


@contextmanager
def make_workplace(world: Transport, folder: str, config: JsonObject) -> Iterator[Path]:
    """Make a new folder that all ranks see, with a configuration in it, for as long as it is used. Raises BadInput if
    that fails."""
    if world.rank == 0:
        try:
            parent = expand_user(folder, "--folder").absolute()
            remove_abandoned_workplaces(parent)
            place = Path(tempfile.mkdtemp(prefix=f"{WORKPLACE}{read_machine_code()}-{os.getpid()}-", dir=parent))
            values = config | {"data": config.get("data", {}) | {"cache": str(place / "federations")}}
            (place / "config.yaml").write_text(json.dumps(values))
        except OSError as error:
            raise BadInput(f"nothing can be written in {folder} ({describe_reason(error)}); name another folder with "
                           f"--folder") from None
    place = Path(share_text(world, str(place) if world.rank == 0 else ""))
    try:
        blind = [r for r, sees in enumerate(gather_objects(world, place.is_dir())) if not sees]
        if blind:
            raise BadInput(f"ranks {format_spans(blind)} do not see {place.parent}; name a folder that all nodes "
                           "share with --folder")
        yield place
    finally:
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def remove_abandoned_workplaces(folder: Path) -> None:
    """Delete the workplaces of this machine whose process is gone: a verification that fails ends at once, and leaves
    the log that its message names."""
    prefix = f"{WORKPLACE}{read_machine_code()}-"
    for place in folder.glob(f"{prefix}*"):
        found = re.fullmatch(r"(\d+)-\w+", place.name.removeprefix(prefix))
        if found and read_start_mark(int(found[1])) is None:
            shutil.rmtree(place, ignore_errors=True)


def perform(world: Transport, place: Path, name: str, words: list[str]) -> FinalValues:
    """Run with some settings; return what comes out at rank 0. Raises FedmpiError where a run fails, and BadInput where
    it is refused."""
    config, out = str(place / "config.yaml"), str(place / name)
    # Nobody asked for what the runs print.
    with redirect_stdout(io.StringIO()):
        code = (serve_as_worker if world.rank else lead_command)(world, RunRequest(config, words, out), RankContext())
    if code == errors.BAD_INPUT:
        raise BadInput(f"run {name} of the verification was refused; what to do about it stands above")
    if code:
        raise FedmpiError(f"run {name} of the verification ended with {code}; what it said stands above")
    if world.rank:
        return FinalValues("", 0.)
    result = json.loads((place / name / run_files.RESULT).read_text())
    return FinalValues(result["digest"][:DIGITS], result["loss"])


def read_published_hashes() -> list[JsonObject]:
    """Return the table of what is published: {"environment": {...}, "hashes": {run: digest}, "losses": {run: loss}}
    each."""
    return parse_yaml(read_yaml(TABLE)) or []


def find_published(table: list[JsonObject], here: JsonObject) -> dict[str, str]:
    """Return the digests that are published for an environment, by run; nothing if there are none."""
    return next((row["hashes"] for row in table if row["environment"] == here), {})


def find_stale(table: list[JsonObject], here: JsonObject, ended: dict[str, FinalValues]) -> list[str]:
    """Return the runs that are published with another digest for this very environment."""
    published = find_published(table, here)
    return [name for name, run in ended.items() if published.get(name, run.digest) != run.digest]


def compare_digest(table: list[JsonObject], here: JsonObject, name: str, run: FinalValues) -> str:
    """Say what is thought of a run: its digest is published for some environment, or its loss is, within rounding."""
    rows = [row for row in table if row["environment"]["fedmpi"] == here["fedmpi"] and name in row["hashes"]]
    if not rows:
        return UNKNOWN
    if run.digest in (row["hashes"][name] for row in rows):
        return KNOWN
    off = min(compute_relative_difference(row["losses"][name], run.loss) for row in rows)
    return f"{CLOSE}: {off:.0e} of the loss" if off <= LOSS_ROUNDING else f"{WRONG}: the loss is off by {off:.0e} of it"


def compute_relative_difference(wanted: float | None, value: float | None) -> float:
    """Return by which part of it a value differs from the one wanted, infinity if either is not finite."""
    if wanted is None or value is None or not math.isfinite(value - wanted):
        return math.inf
    return abs(value - wanted) / max(abs(wanted), 1e-12)


def show_hashes(here: JsonObject, ended: dict[str, FinalValues], found: dict[str, str]) -> str:
    """Return the environment and the table of digests as text."""
    lines = [[name, run.digest, found[name]] for name, run in ended.items()]
    return f"{format_pairs([*here.items()])}\n\n{format_columns(['run', 'digest', 'verdict'], lines)}\n"


def summarise_verdicts(found: dict[str, str], steady: bool, name: str, again: str, stale: list[str]) -> str:
    """Say in a sentence what the verdicts mean, of which the `stale` are published otherwise for this environment."""
    if not steady:
        return (f"{name} gave another digest when it was repeated, {again}: this machine does not compute alike twice; "
                "look at its memory, its clock and its libraries before you trust any run")
    count = {what: sum(v.startswith(what) for v in found.values()) for what in (KNOWN, CLOSE, WRONG, UNKNOWN)}
    if count[WRONG]:
        return (f"{count[WRONG]} of {len(found)} runs are wrong: a changed library or a changed fedmpi computes "
                "something else, not the same with other rounding; see docs/reproducibility.md")
    if count[UNKNOWN]:
        return (f"{count[UNKNOWN]} of {len(found)} runs are not published for this version of fedmpi; {name}, the one "
                "that was repeated, gave the same digest. fedmpi verify --add publishes them")
    if count[CLOSE] and stale:
        return (f"{count[CLOSE]} of {len(found)} digests are new, and their losses agree within rounding; but this "
                f"very environment is published with other digests of {', '.join(stale)}: fedmpi has changed what is "
                "kept of these runs since then, or this machine adds up in another order than its like. fedmpi verify "
                "--add puts the new digests in their place")
    if count[CLOSE]:
        return (f"{count[CLOSE]} of {len(found)} digests are new, and their losses agree within rounding: this machine "
                "is fine, its processor or libraries add up in another order than those of the published digests. "
                "fedmpi verify --add publishes them")
    return f"all {len(found)} digests are known ones"


def publish(here: JsonObject, ended: dict[str, FinalValues], table: list[JsonObject], steady: bool) -> str:
    """Append a row to the table of a checkout, in place of an older one of this environment, or return it as text to
    contribute if this is an installation."""
    stale = find_stale(table, here, ended)
    if find_published(table, here).keys() >= ended.keys() and not stale:
        return "this environment is in the table already\n"
    if not steady:
        raise FedmpiError("digests that do not repeat are not published")
    row = (f"- environment: {json.dumps(here)}\n"
           f"  hashes: {json.dumps({name: run.digest for name, run in ended.items()})}\n"
           f"  losses: {json.dumps({name: run.loss for name, run in ended.items()})}\n")
    checkout = TABLE.parents[2]
    if not ((checkout / "setup.cfg").exists() and os.access(TABLE, os.W_OK)):
        return f"add these lines to fedmpi/commands/{TABLE.name} of the source, and send them:\n{row}"
    # Rows begin with a dash at the left; what stands before the first is a comment.
    comment, *rows = re.split(r"(?m)^(?=- )", read_yaml(TABLE))
    kept = [text for text in rows if parse_yaml(text)[0]["environment"] != here]
    with atomic(TABLE) as part:
        part.write_text("".join([comment, *kept, row]), encoding="utf-8")
    replaced = f", in place of a row with other digests of {', '.join(stale)}" if stale else ""
    return f"added to {TABLE}{replaced}\n"
