"""Every command and all Python in README.md, CONTRIBUTING.md and docs/ does what the page says.

pages.py explains the marks of the blocks."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import forked
from tests.docs.checks import check
from tests.docs.pages import MARKS, PAGES, ROOT, blocks, calls, inline

# Seconds after which a command that hangs is ended; no test depends on it.
LIMIT = 600
# Texts in quotes, in which bash changes nothing, and comments.
PLAIN = re.compile(r"'[^']*'|\"[^\"$`\\]*\"|\s#.*")
# Characters that leave the rest of a line to bash.
SHELL = set("|&;<>$`*({[\"")
# Lines that forks of this process perform.
FORKED = re.compile(r"(mpiexec -n (?P<ranks>\d+) )?(fedmpi (?!sweep)|python -m (?P<module>benchmarks) |"
                    r"python (?P<code>-c )|python (?P<file>(?=\w+\.py$)))")
# The README's first command runs under the real launcher. Here it stops after a tenth of its rounds, because
# `fedmpi verify` in docs/reproducibility.md performs all of them and judges the digest and the loss.
LAUNCHED = "mpiexec -n 3 fedmpi run configs/quickstart.yaml"
SHORTENED = {LAUNCHED: f"{LAUNCHED} rounds=10"}
COPIED = ("benchmarks", "configs", "docs", "fedmpi", "jobs", "slurm", "tests", "README.md", "CONTRIBUTING.md",
          "jobs/results/h200/gpu_day.json")
# These pages and those whose commands are not run.
LINKING = [*(str(page.relative_to(ROOT)) for page in PAGES), "CHANGELOG.md", "SECURITY.md", "slurm/README.md",
           *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "jobs").rglob("README.md"))]
# Packages of the extra `test`, and the text by which a block shows that it needs one. Such blocks are skipped if it is
# missing.
EXTRAS = {"pandas": "pandas", "safetensors": "safetensors", "pyarrow": "pyarrow", "tokenizers": "tokenizers",
          "datasets": "import datasets"}
each = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder without data or settings.

    Matplotlib and the benchmarks are imported here, so that forks which use them need not import them again."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401

    import benchmarks.command  # noqa: F401
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def environment(home, warm):
    """The environment of a reader: that home, and `fedmpi` as a command of a warm Python."""
    # Matplotlib keeps the fonts that it has found here.
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    path = os.pathsep.join([str(warm.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"HOME": str(home), "XDG_CACHE_HOME": cache, "PATH": path, "PYTHONPATH": modules,
                         "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


class Reader:
    """A reader who does what a page says, in a folder that looks like a checkout."""

    def __init__(self, folder: Path, environment):
        self.folder, self.environment = folder, environment
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def run(self, line: str) -> tuple[int, str]:
        """Run a command line; return its exit code and what it printed."""
        simple = FORKED.match(line)
        if simple and line != LAUNCHED and not SHELL & set(PLAIN.sub("", line)):
            words, ranks = shlex.split(line[simple.end():], comments=True), int(simple["ranks"] or 1)
            if simple["code"] or simple["file"] is not None:
                return (self.python if simple["code"] else self.script)(*words, ranks=ranks)
            place = {"cwd": self.folder, "environment": self.environment}
            done = (forked.run(ranks, simple["module"], *words, **place) if simple["module"]
                    else forked.command(ranks, *words, **place))
            return done.returncode, done.stdout + done.stderr
        shell = subprocess.Popen(
            ["bash", "-ec", SHORTENED.get(line, line)], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            said, _ = shell.communicate(timeout=LIMIT)
        finally:
            # Also end processes that the line has left behind.
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        return shell.returncode, said

    def python(self, text: str, ranks: int = 1) -> tuple[int, str]:
        """Run a Python source on some ranks; return the exit code and what they printed."""
        (self.folder / "block.py").write_text(text)
        return self.script("block.py", ranks)

    def script(self, name: str, ranks: int = 1) -> tuple[int, str]:
        """Run a Python file of the folder on some ranks; return the exit code and what they printed."""
        done = forked.script(self.folder / name, self.folder, self.environment, ranks)
        return done.returncode, done.stdout + done.stderr

    def follow(self, block) -> None:
        """Do what a block says, and check that it happens."""
        where = f"line {block.line}"
        if block.language in ("python", "yaml") and block.about:
            path = self.folder / block.about
            assert not path.exists() or path.read_text() == block.text, f"{where}: {block.about} is different"
            path.write_text(block.text)
        elif block.language == "python":
            code, said = self.python(block.text)
            assert code == 0, f"{where}: {said}"
        elif block.language in ("sh", "console") and not block.marked:
            *rest, last = commands = block.commands()
            for command in commands:
                code, said = self.run(command[0])
                wanted = int(block.about or 0) if command == last else 0
                assert code == wanted, f"{where}: {command[0]} ended with {code}:\n{said}"
                assert like(command[1], said), f"{where}: {command[0]} printed\n{said}\nand not\n{command[1]}"


def like(wanted: str, said: str) -> bool:
    """Say whether `said` contains `wanted`, in which `...` stands for any text; all blanks are equal."""
    words = [r"\s+".join(map(re.escape, part.split())) for part in wanted.split("...")]
    return re.search(r"\s*.*?\s*".join(words), said, re.S) is not None


@pytest.fixture
def reader(tmp_path, environment):
    return Reader(tmp_path / "checkout", environment)


@pytest.mark.slow("does all that a page says")
@each
def test_what_a_page_says_happens(page, reader):
    missing = lacking(blocks(page))
    for block in blocks(page):
        if not any(EXTRAS[name] in block.text for name in missing):
            reader.follow(block)
    # Everything else on the page was done.
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)} here: pip install {' '.join(missing)}")


def lacking(found) -> list[str]:
    """Return the packages that some blocks need and that are not installed."""
    return [name for name, sign in EXTRAS.items()
            if find_spec(name) is None and any(sign in block.text for block in found)]


def test_a_page_whose_packages_are_missing_is_not_said_to_be_followed(monkeypatch):
    monkeypatch.setattr("tests.docs.test_docs.find_spec", lambda name: None)
    assert lacking(blocks(ROOT / "README.md")) == ["pandas", "safetensors"] and lacking([]) == []


def test_one_command_is_run_under_a_real_launcher():
    assert LAUNCHED in [line for block in blocks(PAGES[0]) if (block.language, block.about) == ("sh", "")
                        for line, _ in block.commands()]


@each
def test_what_is_not_run_could_be(page, tmp_path, monkeypatch):
    """Check commands that need a cluster, data or hours, and those in the text: names, options, settings and files."""
    for name in ("configs", "jobs", "slurm"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    for block in found:
        if block.language == "yaml" and block.about:
            (tmp_path / block.about).write_text(block.text)
    lines = [line for block in found if block.marked for line, _ in block.commands()] + inline(page)
    for line in lines:
        for words in calls(line):
            try:
                check(words)
            except Exception as error:
                raise AssertionError(f"{line}\n{error}") from error


@each
def test_a_page_leaves_nothing_unsaid(page):
    """Every block has a known language and mark, so that no block goes unnoticed."""
    for block in blocks(page):
        marks = {"sh": ("", *MARKS), "console": ("", "1", "2", "75"), "text": ("",)}
        assert block.about in marks.get(block.language, [block.about]), f"line {block.line}: {block.about}"
        assert block.language in ("sh", "console", "python", "yaml", "text"), f"line {block.line}: {block.language}"


@pytest.mark.parametrize("name", LINKING)
def test_links_and_pictures_of_a_page_exist(name):
    """Results among them: a report makes more pictures than are kept, so one is easily forgotten."""
    page = ROOT / name
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in list_anchors(there.read_text()), f"{target}#{anchor}"


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_readme_links_to_every_page():
    links = re.findall(r"\]\(((?:docs/)?[^)#/]+\.md)\)", (ROOT / "README.md").read_text())
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= set(links)


def test_the_shortened_command_is_performed_in_full_elsewhere():
    """`fedmpi verify` runs the whole quickstart; tests/commands/test_verify.py compares the two configurations."""
    page = ROOT / "docs" / "reproducibility.md"
    assert "fedmpi verify" in [line for block in blocks(page) if (block.language, block.about) == ("sh", "")
                               for line, _ in block.commands()]
