"""The end of the suite's output: which of the checks before it failed (.ci/run), then pytest's closing line."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_parts(folder, *parts: str) -> str:
    """Run lines of .ci/run's `part`, and return what it noted for the suite."""
    function = re.search(r"^part\(\) \{.*?^\}", (ROOT / ".ci" / "run").read_text(), re.M | re.S)
    script = "\n".join(["set -euo pipefail", f"work='{folder}'", 'touch "$work/failed"', function[0], *parts])
    subprocess.run(["bash", "-c", script], check=True, capture_output=True, timeout=60)
    return (folder / "failed").read_text().strip()


def run_suite(folder, failed: str) -> tuple[int, list[str]]:
    """Run a suite of one test that passes, and return its exit code and the lines of its output."""
    (folder / "test_one.py").write_text("def test_one():\n    pass\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.budget", "-p", "no:cacheprovider", "-n0", "."],
                          cwd=folder, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "FEDMPI_FAILED_PARTS": failed})
    return done.returncode, done.stdout.splitlines()


def test_parts_that_failed_are_said_before_the_closing_line(tmp_path):
    failed = run_parts(tmp_path, "part types 60 true", "part documentation 60 sh -c 'echo no page; exit 3'")
    assert failed == "documentation FAILED with code 3\nno page"
    code, lines = run_suite(tmp_path, failed)
    assert code == 0 and lines[-4:-1] == ["Before this suite failed:", *failed.splitlines()]
    assert re.search(r"^=+ 1 passed in [\d.]+s =+$", lines[-1])


def test_a_part_that_takes_too_long_has_failed(tmp_path):
    assert run_parts(tmp_path, "part documentation .2 sleep 20") == "documentation FAILED with code 124"


@pytest.mark.parametrize("parts", [["part types 60 true"], []])
def test_nothing_is_said_where_all_parts_passed(tmp_path, parts):
    failed = run_parts(tmp_path, *parts)
    code, lines = run_suite(tmp_path, failed)
    assert failed == "" and code == 0 and not any("Before this suite" in line for line in lines)
