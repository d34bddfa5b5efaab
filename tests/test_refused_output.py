"""Commands whose output is refused: by a full disk, or because its reader has gone."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import BUFFERED

pytestmark = pytest.mark.slow("processes that begin anew")
FULL = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")


def run_command_into(stdout, *words, stderr=subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedmpi", *words], stdout=stdout, stderr=stderr, text=True,
                          env=BUFFERED)


@FULL
@pytest.mark.parametrize("word", ["methods", "--version"])
def test_an_output_that_cannot_be_written_is_one_line(word):
    with open("/dev/full", "w") as full:
        done = run_command_into(full, word)
    assert done.returncode == 1 and done.stderr == (
        "fedmpi: standard output cannot be written: No space left on device; free some space, or send it elsewhere\n")


@FULL
def test_where_nothing_can_be_printed_a_command_keeps_its_code():
    with open("/dev/full", "w") as full:
        assert run_command_into(full, "methods", "nope", stderr=full).returncode == 2


def test_an_output_whose_reader_has_gone_is_no_traceback():
    reader, end = os.pipe()
    os.close(reader)
    done = run_command_into(end, "methods")
    os.close(end)
    assert (done.returncode, done.stderr) == (1, "")
