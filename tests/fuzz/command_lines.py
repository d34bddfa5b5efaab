"""Command lines: every command with every option; arguments are mostly of their own kind, and sometimes of another."""
from __future__ import annotations

import inspect
import random
import shutil
import typing
from functools import cache
from pathlib import Path
from types import NoneType

from tests.fuzz.case import Case
from tests.fuzz.reference import Reference
from tests.fuzz.values import FLOATS, INTEGERS, TEXTS, near, word

# Name of an argument or option -> its values, beside hostile texts. The folder of a case has all these files.
WORDS = {
    "config": ("c.yaml", "c.yaml", "job.yaml", "few.npz", "run/config.yaml", "run", "canary.txt", "."),
    "path": ("job.yaml", "job.yaml", "c.yaml", "run"), "paths": ("run", "other", "job.yaml", "canary.txt", "tmp", "."),
    "runs": ("run", "other", "tmp", "c.yaml"), "run": ("run", "run", "run/checkpoints/round-000002.h5", "other",
                                                       "c.yaml", "tmp"),
    "first": ("run", "other", "tmp"), "second": ("other", "run", "c.yaml"), "folder": (".", "run", "tmp", "c.yaml",
        "new"),
    "out": ("new", "new/a/b", "run", "canary.txt/x", "tmp", "."), "to": ("new", "canary.txt", "tmp", "new/a"),
    "overrides": ("rounds=1", "seed=3", "method=fedavg", "train.lr=.1", "rounds", "=", "a=b", "method.lam=.2",
                  "rounds=",
                  ".=1", "a..b=1", "data.clients=3", "method={name: ifca, k: 2}", "model.hidden=3", "engine=loop"),
    "resume": ("auto", "run/checkpoints/round-000002.h5", "run", "canary.txt", "few.npz", "no"),
    "time_limit": ("10", "00:10:00", "1-00:00:00", "0", "-1", "1:2:3:4", "99999999999999-00", "nan", "1e3", "0:0",
                   "00:00"),
    "time": ("10", "00:10:00", "1-00:00:00", "0", "-1", "99999999999999-00", "UNLIMITED", "$(id)"),
    "scale": ("small", "no"), "name": ("fedavg", "mlp", "digits", "dirichlet", "arrays", "own:Own", "json:loads",
                                       "torch.nn:Linear"),
    "profile": ("generic", "one-node", "cray-pmi", "tacc-like", "jsc-like", "c.yaml", "no"), "mpi": ("pmi2", "pmix",
        "none", ""),
    "gpu_request": ("gres", "gpus-per-task", "none", "gpus-per-node"), "launcher": ("srun", "mpiexec", "ibrun",
        "a {ranks}", "a 'b"),
    "array": ("seed=0,1,2", "seed=", "canary.txt", "seed=[1", "=", "seed=0,0", "a=1,2"), "signal": ("USR1@120", "",
        "B:USR1@9", "x"),
    "option": ("--mem=8G", "-n 3", "--x\ny", "#"), "setup": ("module load x", "'", "exit"), "command": ("fedmpi",
        "a 'b", ""),
    "partition": ("a", "a b"), "account": ("a", "$(id)"), "client": ("0", "4", "5", "-1", "1e9"), "rate": ("9", "0",
        "-1", "nan", "1e300"),
    "local": ("1", "2"), "ranks": ("1", "2", "0", "9e29", "100000")}
# Commands in the order of their weights. `verify` without a run, and a sweep that starts runs, take many seconds.
OFTEN = (
    "run", "run", "run", "plan", "data", "methods", "models", "datasets", "partitions", "submit", "submit", "submit",
    "summary", "sweep", "sweep", "compare", "export", "export", "tensorboard", "bench", "doctor", "verify", "report")
DRY = {"submit": "--dry-run", "sweep": "--dry-run"}


def build(draw: random.Random, folder: Path, reference: Reference) -> Case:
    """Copy two runs into the folder; return the case of a command line about them."""
    for name in ("run", "other", "cache"):
        shutil.copytree(reference.folder / name, folder / name)
    for name in ("c.yaml", "job.yaml"):
        shutil.copy(reference.folder / name, folder / name)
    command = draw.choice(OFTEN)
    words, outputs = [command], []
    # A command line that works is changed at one to three places.
    chances = iter(draw.sample(range(9), 9))
    for name, (hint, default) in arguments()[command].items():
        many, needed = "list" in str(hint), default is inspect.Parameter.empty
        option = name_of_option(command, name)
        if not needed and not (option and command == "submit" and draw.random() < .12) and draw.random() > .25:
            continue
        for _ in range(draw.choice([1, 1, 2, 3]) if many else 1):
            value = argument(draw, name, hint, next(chances, 9))
            words += [value] if not option else [option] if hint is bool else [option, value]
            if name in ("out", "to"):
                outputs.append(value)
    if command == "report" and draw.random() < .5:
        words[1:2] = ["run", "other"]
    if draw.random() < .06:
        words.insert(draw.randrange(1, len(words) + 1), draw.choice(["--no", "-h", "--help", "-x", "--", "", "--out",
            "--json=3"]))
    if draw.random() < .04:
        words[0] = near(draw, command)
    elif command == "verify" and (len(words) == 1 or words[1].startswith("--")):
        words.insert(1, "run")
    if command in DRY and DRY[command] not in words:
        words.append(DRY[command])
    if command == "sweep" and "--rate" not in words:
        words += ["--rate", "9"]
    words = [word(draw, text) for text in words]
    return Case(" ".join(words)[:110], [words], outputs=tuple(outputs))


@cache
def arguments() -> dict[str, dict[str, tuple[object, object]]]:
    """Return the arguments and options of each command: name -> type and default."""
    from fedmpi.cli import app
    found = {}
    for entry in app.registered_commands:
        hints = typing.get_type_hints(entry.callback)
        found[entry.callback.__name__] = {
            name: (hints[name], p.default) for name, p in inspect.signature(entry.callback).parameters.items()
            if name != "context"}
    return found


def name_of_option(command: str, name: str) -> str:
    """Return how an option is written, "" for an argument."""
    from fedmpi.cli import app
    entry = next(e for e in app.registered_commands if e.callback.__name__ == command)
    hints = typing.get_type_hints(entry.callback, include_extras=True)
    info = next((e for e in getattr(hints[name], "__metadata__", ()) if hasattr(e, "param_decls")), None)
    if type(info).__name__ != "OptionInfo":
        return ""
    return next((text for text in info.param_decls or () if text.startswith("--")), f"--{name.replace('_', '-')}")


def argument(draw: random.Random, name: str, hint: object, chance: int) -> str:
    """Return a word for an argument; it is a hostile one if `chance` is 0."""
    inner = [i for i in typing.get_args(hint) if i is not NoneType] or [hint]
    if chance == 0:
        return draw.choice(TEXTS)
    if chance == 1 and inner[0] in (int, float):
        return str(draw.choice(FLOATS if inner[0] is float or draw.random() < .2 else INTEGERS[:-3]))
    if name in WORDS:
        return draw.choice(WORDS[name])
    return str(draw.randrange(1, 4)) if inner[0] is int else draw.choice(TEXTS)
