"""The programs of examples/ do what they say."""
from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow("performs five trials of eight rounds")
def test_trials_of_a_search_are_pruned(tmp_path, monkeypatch, capsys):
    import optuna
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["search_with_optuna.py", "5"])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = runpy.run_path(str(EXAMPLES / "search_with_optuna.py"), run_name="__main__")
    states = [trial.state.name for trial in found["study"].trials]
    assert states[:3] == ["COMPLETE"] * 3 and "PRUNED" in states[3:]
    for number, state in enumerate(states):
        assert (tmp_path / "runs" / "search" / f"trial-{number}" / "result.json").exists() == (state == "COMPLETE")
    assert "on validation samples" in capsys.readouterr().out
    assert len((EXAMPLES / "search_with_optuna.py").read_text().splitlines()) < 50


@pytest.mark.slow("starts a notebook's kernel, which trains three methods")
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    import nbclient
    import nbformat
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    runs, table, figure, clusters, network = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    # One output shows the present round of each run, and other outputs hold what stays.
    shown = [output.data["text/plain"] for output in runs if output.output_type == "display_data"]
    assert [text.split("  ")[0] for text in shown] == ["round 12/12"] * 3
    assert "FedMHC" in table[0].data["text/html"] and any("image/png" in output.get("data", {}) for output in figure)
    assert clusters[0].data["text/plain"].count("10") == 4 and "Linear" in network[0].data["text/plain"]
    assert all("outputs" not in cell or not cell.outputs
               for cell in nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4).cells)
