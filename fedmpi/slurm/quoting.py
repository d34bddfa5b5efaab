"""Quote what a user gives for the two readers of a job script: bash, and sbatch, which reads its `#SBATCH` lines."""
from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable

from fedmpi.errors import BadInput

# Characters of an option; sbatch itself refuses some that are shorter, with a message of its own.
LONGEST_TEXT = 4000
PLAIN_FOR_SBATCH = re.compile(r"[\w@%.,:=+*/\[\]()&|-]+", re.ASCII)
OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(?:(=)(.*))?", re.ASCII)
# Characters of a job's name.
LONGEST_JOB_NAME = 100
JOB_NAME = re.compile(rf"(?!\.)[\w.-]{{1,{LONGEST_JOB_NAME}}}", re.ASCII)
PLACEHOLDER = re.compile(r"\{(ranks|nodes)\}")


class ShellText(str):
    """Text of a script that is put into it as it stands. All other values are quoted."""


def quote_for_bash(value: object) -> ShellText:
    """Return a value as bash has to read it: one word, or several for a list or tuple."""
    if isinstance(value, ShellText):
        return value
    if isinstance(value, list | tuple):
        return ShellText(" ".join(quote_for_bash(word) for word in value))
    return ShellText(shlex.quote(str(value)))


def quote_placeholders(words: Iterable[str]) -> ShellText:
    """Quote a launcher's words; `{ranks}` and `{nodes}` become the script's variables."""
    def quoted(word: str) -> str:
        parts = PLACEHOLDER.split(word)
        texts = [f'"${part}"' if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if i % 2 or part]
        return "".join(texts) or "''"
    return ShellText(" ".join(map(quoted, words)))


def quote_for_sbatch(option: str) -> ShellText:
    """Return an option, `--name` or `--name=value`, as sbatch has to read it in a line of the script.

    Inside double quotes sbatch takes all characters as they are, except that a backslash hides the next one.
    Raises BadInput if the text is not an option or has control characters."""
    match = OPTION.fullmatch(option)
    if not match or len(option) > LONGEST_TEXT:
        raise BadInput(f"{shorten_text(option)!r} is not an option of sbatch: write --name or --name=value, "
                       "for example --option=--mem=8G")
    name, equals, value = match.groups(default="")
    if equals and not PLAIN_FOR_SBATCH.fullmatch(value):
        value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return ShellText(name + equals + value)


def refuse_control_characters(what: str, *texts: str) -> None:
    """Raise BadInput if a text has characters that cannot be printed: a new line, NUL, an escape."""
    for text in texts:
        if any(not character.isprintable() for character in text):
            raise BadInput(f"{what} {shorten_text(text)!r}: control characters and new lines cannot stand in a job "
                           f"script")


def check_job_name(name: str) -> None:
    """Raise BadInput if a text cannot be the name of a job, of its script and of its run folder."""
    if not JOB_NAME.fullmatch(name):
        raise BadInput(f"--name {shorten_text(name)!r}: a job's name has letters of ASCII, digits, - _ and . alone, "
                       f"does not begin with a dot, and is at most {LONGEST_JOB_NAME} characters long")


def check_setup(text: str) -> None:
    """Raise BadInput if bash cannot read the user's shell commands as the body of the script's function `setup`.

    bash reads a function whole before it calls it, so an open quote, an open `if` or a here-document without its end
    would keep the job from starting. Nothing is run."""
    try:
        done = subprocess.run(["bash", "-n"], input=f"setup() {{\n{text}\n}}\n", text=True, errors="surrogateescape",
                              capture_output=True)
    except FileNotFoundError:
        # A login node has bash, since Slurm's scripts run in it; elsewhere a script is only looked at.
        return
    if done.returncode or done.stderr:
        why = done.stderr.strip().splitlines()[0].partition("line ")[2].partition(": ")[2]
        raise BadInput(f"--setup {shorten_text(text)!r}: bash cannot read it ({why}); close every quote, bracket "
                       "and if")


def split_command(option: str, text: str) -> tuple[str, ...]:
    """Divide a text into words as a shell would. Raises BadInput if it has no word, or a quote is left open."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"{option} {shorten_text(text)!r}: {error}; close every quote") from None
    if not words:
        raise BadInput(f"{option} is empty: give the words of a command")
    return words


def shorten_text(text: str) -> str:
    """Return a text that fits into a message."""
    return text if len(text) <= 80 else text[:77] + "..."
