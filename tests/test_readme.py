"""The Python blocks of the README work on a run that its first command makes."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from tests.runs import run_alone

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cache):
    """A folder with a run of two rounds."""
    folder = tmp_path_factory.mktemp("readme")
    words = ["rounds=2", f"data.cache={cache}"]
    out = str(folder / "runs/quickstart-001")
    assert run_alone(str(ROOT / "configs/quickstart.yaml"), words, out) == 0
    return folder


@pytest.fixture
def execute(folder, monkeypatch):
    """A function that executes the only block that contains a text, and returns what it defined."""
    monkeypatch.chdir(folder)

    def execute(text: str) -> dict:
        block, = (block for block in BLOCKS if text in block)
        found = {}
        exec(block, found)
        return found
    return execute


def test_a_trained_model_in_plain_pytorch(execute):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("safetensors")
    done = CliRunner().invoke(app, ["export", "runs/quickstart-001", "client7.safetensors", "--client", "7"])
    assert done.exit_code == 0, done.output
    net = execute("load_file")["net"]
    assert net(torch.zeros(3, 64)).shape == (3, 10)


def test_results_in_pandas(execute):
    pytest.importorskip("pandas", reason="there is no pandas here: pip install pandas")
    found = execute("read_json")
    rounds, clients = found["rounds"], found["clients"]
    assert rounds["round"].tolist() == clients.index.tolist() == [1, 2] and clients.shape == (2, 40)
    assert rounds["accuracy_mean"].tolist() == pytest.approx(clients.mean(axis=1).tolist(), abs=1e-15)
