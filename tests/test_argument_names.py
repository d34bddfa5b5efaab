"""Errors name arguments where a Python program reads them, and options where a user of the command line does."""
from __future__ import annotations

import inspect

import pytest
import typer

import fedmpi
from fedmpi.argument_names import name_arguments, translate_options
from fedmpi.cli import app
from fedmpi.errors import BadInput, GivenUp


@pytest.mark.parametrize("text, expected", [
    ("x is taken; continue it with --resume auto, or choose another --out",
     "x is taken; continue it with resume='auto', or choose another out="),
    ("continue with --out runs/a-1 --resume auto", "continue with out='runs/a-1', resume='auto'"),
    ("--resume runs/a is a folder: give a checkpoint file, or --out runs/a --resume auto",
     "resume=runs/a is a folder: give a checkpoint file, or out='runs/a', resume='auto'"),
    ("--time-limit 1x is not a time", "time_limit=1x is not a time"), ("(--resume then needs --accept-changed-code)",
     "(resume= then needs accept_changed_code=True)"), ("rank 0: --ranks 3 needs an mpiexec",
     "rank 0: ranks=3 needs an mpiexec"),
    ("export a client's with --client 0 to 3", "export a client's with client=0 to 3"),
    ("it has none; export a client's with --client", "it has none; export a client's with client="),
    ("if you trust the run, give --own-code", "if you trust the run, give own_code=True"),
    ("srun --ntasks, --mpi=pmix, --output", "srun --ntasks, --mpi=pmix, --output")])
def test_options_become_arguments(text, expected):
    assert translate_options(text) == expected and translate_options(expected) == expected


@pytest.mark.parametrize("command, function", [("run", fedmpi.run), ("sweep", fedmpi.sweep), ("plan", fedmpi.plan)])
def test_each_option_that_is_an_argument_is_known(command, function):
    options = [name for param in typer.main.get_command(app).commands[command].params for name in param.opts
               if name.startswith("--")]
    for name in {name.removeprefix("--").replace("-", "_") for name in options} & set(
            inspect.signature(function).parameters) - {"scale"}:
        assert translate_options(f"another --{name.replace('_', '-')}").startswith(f"another {name}=")


def test_an_error_stays_the_same_but_for_its_words():
    error, cause = GivenUp("give --out"), KeyError("x")
    with pytest.raises(GivenUp, match="^give out=$") as found, name_arguments():
        raise error from cause
    assert found.value is error and found.value.__cause__ is cause
    with pytest.raises(ValueError, match="--out"), name_arguments():
        raise ValueError("--out")


def test_the_command_names_options_and_python_arguments(bench, capsys):
    """A folder with a finished run is refused in the words of whoever asks."""
    assert bench.lead("twice", "rounds=1") == 0 and bench.lead("twice", "rounds=1") == 2
    assert "continue it with --resume auto, or choose another --out" in capsys.readouterr().err
    with pytest.raises(BadInput, match="continue it with resume='auto', or choose another out=$"):
        fedmpi.run(bench.config, out=bench.out("twice"), rounds=1)
    with pytest.raises(BadInput, match="^time_limit=soon is not a time"):
        fedmpi.run(bench.config, out=bench.out("new"), time_limit="soon")
    with pytest.raises(BadInput, match="^client=99: the run has clients"):
        fedmpi.load_result(bench.out("twice")).model(99)
