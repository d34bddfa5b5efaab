"""The user's own code that fails: one line names the file, the line and a remedy, and the log has the traceback.

The exit code is 2 before the first round and 1 later."""
from __future__ import annotations

import json
import sys
from textwrap import dedent

import pytest
from typer.testing import CliRunner

import fedmpi
from fedmpi import registry
from fedmpi.cli import app
from fedmpi.errors import BadInput, FaultyCode, FedmpiError
from tests.runs import run_alone
from tests.test_exits import Alone, Ended

MODULE = "mine_broken"
METHOD = '''
from dataclasses import dataclass
from fedmpi.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Own(FedAvg):
    lam: float = 1.

'''
NETWORK = '''
from torch import nn
import torch

class Own(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.b(self.a(x).relu())

'''
PARTITION = '''
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Own:
    title = "own"
    def assign(self, labels, clients, rng):
        parts = np.array_split(np.arange(len(labels)), clients)
'''
DATA = '''
import numpy as np

class Own:
    """Own."""
    title = "own"
    def load(self, root):
'''
TEXTS = {"method": METHOD, "model": NETWORK, "data.name": DATA, "data.partition": PARTITION}
# What an import does -> the line of the error, and what is said.
IMPORTS = {
    "def f(:": (1, "SyntaxError: invalid syntax"), "x = 1\ny\0": (2, "SyntaxError: source code"),
    "import nowhere_at_all": (1, "No module named 'nowhere_at_all'"),
    "x = 1\nraise ValueError('so\\nmany lines')": (2, "ValueError: so many lines"),
    "import sys\nsys.exit(7)": (2, "SystemExit: 7"), "raise SystemExit": (1, "SystemExit"),
    "raise KeyboardInterrupt": (1, "KeyboardInterrupt"), "from os import nothing_there": (1, "ImportError: cannot"),
    "class E(Exception):\n    def __str__(self): 1 / 0\nraise E": (3, "E; repair it"),
    "import torch\ntorch.ones(2) @ torch.ones(3)": (2, "RuntimeError: ")}
PLACES = {"methods": "method={}", "models": "model={}", "datasets": "data.name={}", "partitions": "data.partition={}"}


# What fails -> the setting that names it, the rest of the module's text, and what is said.
BEFORE = {
    "settings": ("method", "    def __post_init__(self):\n        raise KeyError('post')", "KeyError: 'post'"),
    "ValueError without a word": ("method", "    def __post_init__(self):\n        raise ValueError", "ValueError"),
    "subclass of it": ("method", "    def __post_init__(self):\n        b'x\\xff'.decode()", "UnicodeDecodeError: "),
    "arguments": ("method", "    def client(self, shared):\n        return None", "takes 2 positional arguments but 4"),
    "check": ("method", "    def check(self, train):\n        1 / 0", "ZeroDivisionError: division by zero"),
    "with_model": ("method", "    def with_model(self, model):\n        1 / 0", "ZeroDivisionError"),
    "init": ("method", "    def init(self, n):\n        return self.nothing", "AttributeError: 'Own' object"),
    "first client": ("method", "    def client(self, shared, mine, data):\n        1 / 0", "ZeroDivisionError"),
    "rows by position": ("method", "    def server(self, shared, up, who):\n        return up.w[0]",
                         "RowsStay: the rows of w lie at the ranks of their clients, one row each; ask for "
                         "mean(weights), sum(weights), "),
    "rows in a loop": ("method", "    def server(self, shared, up, who):\n        return sum(up.w)", "RowsStay: "),
    "rows in a product": ("method", "    def server(self, shared, up, who):\n        return who.sizes * up.w",
                          "RowsStay: "),
    "exit in check": ("method", "    def check(self, train):\n        raise SystemExit(0)", "SystemExit: 0"),
    "interrupt": ("method", "    def check(self, train):\n        raise KeyboardInterrupt", "KeyboardInterrupt"),
    "network": ("model", "    def __init__(self):\n        1 / 0", "cannot be built: "),
    "no super": ("model", "    def __init__(self):\n        return", "__init__() must call super().__init__() before"),
    "forward": ("model", "    def forward(self, x):\n        1 / 0", "ZeroDivisionError"),
    "shapes": ("model", "    def forward(self, x):\n        return self.b(x)", "cannot take samples of shape (64,): "),
    "load": ("data.name", "        1 / 0", "data.name = mine_broken:Own: "),
    "load exits": ("data.name", "        raise SystemExit", "SystemExit"),
    "files": ("data.name", "        pass\n    def files(self, root):\n        1 / 0", "ZeroDivisionError"),
    "source": ("data.name", "        pass\n    def __init__(self):\n        1 / 0", "ZeroDivisionError"),
    "load None": ("data.name", "        return None",
                  "load() must return a Dataset (x_train, y_train, x_test, y_test), not a NoneType"),
    "load three": ("data.name", "        return np.ones((9, 2)), np.zeros(9), np.ones((2, 2))", "not a tuple of 3"),
    "assign": ("data.partition", "        1 / 0", "ZeroDivisionError"),
    "assign None": ("data.partition", "", "return a pair (sample indices of each client, groups or None), not a "
                    "NoneType"),
    "assign list": ("data.partition", "        return parts", "groups or None), not a list"),
    "assign generator": ("data.partition", "        return (p for p in parts), None", "as a list of arrays, "
                         "not a generator"),
    "clients": ("data.partition", "        return parts[1:], None", "; it gives 8 parts"),
    "empty": ("data.partition", "        return [[], *parts[1:]], None", "client 0 gets none"),
    "twice": ("data.partition", "        return [parts[1], *parts[1:]], None", "is given twice"),
    "range": ("data.partition", "        return [p + 5 for p in parts], None", "client 8 gets indices from"),
    "negative": ("data.partition", "        return [p - 1 for p in parts], None", "client 0 gets indices "
                 "from -1"),
    "floats": ("data.partition", "        return [p * 1. for p in parts], None", "float64"),
    "groups": ("data.partition", "        return parts, [0, 1]", "the group of each of 9 clients"),
    "groups 2-D": ("data.partition", "        return parts, np.ones((9, 1), int)", "int64 (9, 1) from 1"),
    "groups < 0": ("data.partition", "        return parts, np.arange(-1, 8)", "int64 (9,) from -1"),
}
OUTPUTS = {
    "tuple": ("return self.b(self.a(x)), 1", "gives a tuple, not a tensor; return the tensor of logits"),
    "logits": ("from types import SimpleNamespace\n        return SimpleNamespace(logits=self.b(self.a(x)))",
               "gives a SimpleNamespace, not a tensor; return its .logits"),
    "NaN": ("return self.b(self.a(x)) * float('nan')", "first outputs are not finite"),
    "wrong shape": ("return self.b(self.a(x))[:, :9]", "not its last operation"),
    "none": ("pass", "gives a NoneType")}


@pytest.fixture
def attempt(place, bench, capsys):
    """A function that runs a configuration with the user's module; returns the exit code and what is said."""
    def attempt(text: str, *words: str, out="run", resume=None) -> tuple[int, str]:
        (place / f"{MODULE}.py").write_text(text)
        sys.modules.pop(MODULE, None)
        capsys.readouterr()
        try:
            code = run_alone(bench.config, words, place / out, resume, world=Alone())
            return code, capsys.readouterr().err
        except Ended as end:
            return end.args[1], end.args[0]
    return attempt


def line_of(text: str, part: str) -> int:
    return 1 + [part in line for line in text.splitlines()].index(True)


@pytest.mark.parametrize("text", IMPORTS)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(attempt, place, text, monkeypatch):
    monkeypatch.setattr("fedmpi.own_code.failures.is_ctrl_c", lambda error: False)
    line, said = IMPORTS[text]
    for setting in PLACES.values():
        code, words = attempt(text, setting.format(f"{MODULE}:Own"))
        assert code == 2 and f"{MODULE}.py:{line}: " in words and said in words and words.count("\n") == 1
        assert "; repair it" in words and words.endswith(f"(traceback in {place / 'run' / 'log.txt'})\n")
    assert "Traceback" in (place / "run" / "log.txt").read_text()


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("what", ["raise ValueError('so')", "raise SystemExit(3)", "import nowhere_at_all"])
def test_a_broken_plug_in_of_every_group_is_named_with_its_line(attempt, place, monkeypatch, kind, what):
    class Entry:
        name, value = "theirs", f"{MODULE}:Own"
        load = staticmethod(lambda: __import__(MODULE).Own)
    monkeypatch.setattr(registry, "entry_points", lambda group, name=None: [Entry] if group == f"fedmpi.{kind}" else [])
    code, words = attempt(f"\n{what}", PLACES[kind].format("theirs"))
    assert code == 2 and f"{MODULE}.py:2: " in words
    assert f"{kind[:-1]} 'theirs' is a plug-in that cannot be loaded" in words and "repair or uninstall" in words
    listed = CliRunner().invoke(app, [kind, "theirs"])
    assert listed.exit_code == 2 and f"{MODULE}.py:2: " in listed.output
    # The list of the methods takes a second.
    assert kind == "methods" or CliRunner().invoke(app, [kind]).exit_code == 0


@pytest.mark.parametrize("what", BEFORE)
def test_code_that_fails_before_the_first_round_is_refused(attempt, place, what, monkeypatch):
    monkeypatch.setattr("fedmpi.own_code.failures.is_ctrl_c", lambda error: False)
    monkeypatch.setattr("fedmpi.session.is_ctrl_c", lambda error: False)
    key, text, said = BEFORE[what]
    text = TEXTS[key] + text
    code, words = attempt(text, f"{key}={MODULE}:Own", "engine=loop")
    first, *more = words.strip().splitlines()
    assert code == 2 and first.startswith("fedmpi: ") and said in first, words
    assert f"{MODULE}.py:" in first
    if "ZeroDivision" in said:
        assert f"{MODULE}.py:{line_of(text, '1 / 0')}: " in first and "repair it" in first
        assert "ZeroDivisionError" in (place / "run" / "log.txt").read_text()
    assert len(more) <= 1 and "Traceback" not in words
    assert not (place / "run" / "lock").exists()


@pytest.mark.parametrize("what", OUTPUTS)
def test_a_network_must_give_a_tensor_of_finite_logits(attempt, what):
    text, said = OUTPUTS[what]
    code, words = attempt(f"{NETWORK}    def forward(self, x):\n        {text}", f"model={MODULE}:Own")
    assert code == 2 and said in words


@pytest.mark.parametrize("hook", ["client(self, shared, mine, data)", "server(self, shared, up, who)",
                                  "personal(self, shared, mine, data)"])
@pytest.mark.parametrize("raised", ["ValueError('so')", "SystemExit(0)", "KeyboardInterrupt"])
@pytest.mark.parametrize("when", [0, 2])
def test_a_method_that_fails_in_a_round_ends_the_run_with_code_1(attempt, place, monkeypatch, hook, raised, when):
    for module in ("session", "own_code.failures", "server.rehearsal"):
        monkeypatch.setattr(f"fedmpi.{module}.is_ctrl_c", lambda error: False)
    name, _, arguments = hook.partition("(")
    passed = arguments.removeprefix("self, ")
    text = (f"calls = 0\n{METHOD}    def {hook}:\n        global calls\n        calls += 1\n        if calls > "
            f"{when}:\n            raise {raised}\n        return super().{name}({passed}\n")
    code, words = attempt(text, f"method={MODULE}:Own", "engine=loop", "data.clients=1", "data.partition=iid",
                          "train.participation=1.")
    first = words.splitlines()[0]
    # both run once before the first round, which is when faults should be found
    early = name in ("client", "personal") and when == 0
    assert code == (2 if early else 1) and f"{MODULE}.py:{line_of(text, 'raise')}: " in first, words
    assert raised.partition("(")[0] in first and "repair it" in first
    assert early or "--resume then needs --accept-changed-code" in first
    assert "Traceback" not in words and raised.partition("(")[0] in (place / "run" / "log.txt").read_text()


def test_from_python_the_error_keeps_its_cause(place, bench):
    (place / f"{MODULE}.py").write_text(METHOD + "    def server(self, shared, up, who):\n        return {}['key']\n")
    with pytest.raises(FedmpiError, match=f"{MODULE}.py:10: KeyError: 'key'; repair it") as later:
        fedmpi.run(bench.config, out=place / "later", method=f"{MODULE}:Own", quiet=True)
    assert isinstance(later.value.__cause__, KeyError) and type(later.value) is FedmpiError
    (place / f"{MODULE}.py").write_text("raise LookupError")
    sys.modules.pop(MODULE, None)
    with pytest.raises(BadInput, match=f"{MODULE}.py:1: LookupError; repair it") as before:
        fedmpi.run(bench.config, out=place / "before", method=f"{MODULE}:Own", quiet=True)
    assert isinstance(before.value.__cause__, LookupError)


@pytest.mark.parametrize("words", [("plan",), ("data",), ("submit", "--dry-run")])
def test_other_commands_name_the_line_too(place, bench, words):
    (place / f"{MODULE}.py").write_text(PARTITION + "        1 / 0\n")
    command, *more = words
    done = CliRunner().invoke(app, [command, bench.config, f"data.partition={MODULE}:Own", "data.clients=3", *more])
    if command == "submit":
        assert done.exit_code == 0
        (place / f"{MODULE}.py").write_text("1 / 0")
        sys.modules.pop(MODULE)
        done = CliRunner().invoke(app, [command, bench.config, f"data.partition={MODULE}:Own", *more])
    assert done.exit_code == 2 and f"{MODULE}.py:" in done.output and "ZeroDivisionError" in done.output
    assert "Traceback" not in done.output


def test_an_error_of_fedmpi_itself_is_not_taken_for_one_of_the_user(monkeypatch, bench, tmp_path):
    def fault(*arguments):
        # pathlib's line is the innermost one
        from pathlib import Path
        Path(3)
    monkeypatch.setattr("fedmpi.own_code.failures.is_own", lambda file, module: False)
    monkeypatch.setattr("fedmpi.decision.refuse_engine", fault)
    with pytest.raises(TypeError):
        run_alone(bench.config, [], tmp_path / "run", world=Alone())


NETWORKS_THAT_WORK = {
    "function": "def Own(width: int = 8) -> nn.Module:\n    return nn.Sequential(nn.Linear(64, width), "
                "nn.Linear(width, 10))",
    "partial": "from functools import partial\nclass Net(nn.Sequential):\n    def __init__(self, width):\n"
               "        super().__init__(nn.Linear(64, width), nn.Linear(width, 10))\nOwn = partial(Net, width=4)"}


@pytest.mark.parametrize("what", NETWORKS_THAT_WORK)
def test_a_function_or_a_partial_may_make_the_network(attempt, place, what):
    text, model = f"from torch import nn\n{NETWORKS_THAT_WORK[what]}\n", f"model={{name: {MODULE}:Own, width: 5}}"
    code, words = attempt(text, model, "rounds=1")
    assert code == 0, words
    assert json.loads((place / "run" / "result.json").read_text())["own_code"].keys() == {MODULE}


def test_a_function_that_is_not_annotated_to_return_a_network_is_not_called(attempt, place):
    text = "from pathlib import Path\ndef Own():\n    Path('called').touch()\n"
    code, words = attempt(text, f"model={MODULE}:Own")
    assert code == 2 and "annotated to return one: `-> nn.Module`" in words and not (place / "called").exists()


def test_a_network_that_leaves_out_padding_is_tried_on_words(place):
    """A text of zeros is all padding, and its mean over words would be NaN."""
    from fedmpi.models.build import build_model
    (place / f"{MODULE}.py").write_text(dedent("""
        import torch
        from torch import nn

        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.b = nn.Embedding(9, 4), nn.Linear(4, 3)

            def forward(self, x):
                mask = (x != 0).float()[..., None]
                return self.b((self.table(x) * mask).sum(1) / mask.sum(1))
        """))
    from fedmpi.config.schema import resolve
    assert build_model(resolve({"model": f"{MODULE}:Own"}).model, (6,), "int32", 3, 0).size == 51


def test_faulty_code_is_bad_input():
    assert FaultyCode.code == 2 and issubclass(FaultyCode, BadInput)
