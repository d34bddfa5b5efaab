"""Judge what a command did: it ended well, it refused clearly, or it fell short."""
from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.own_code import PRINTED
from tests.fuzz.perform import Done
from tests.fuzz.reference import Reference, digest_of_run, hash_of_file, hash_of_history

# A configuration may have many problems; each takes a line.
MAX_LINES, MAX_LINE = 14, 1500
TEMPORARY = re.compile(r"\.(part|tmp)$|\.tmp\b|^tmp/.")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SAID = re.compile(r"^(fedmpi: |Usage: |\d+: fedmpi: |\W{2,} ?Error )", re.M)
UNEXPECTED = re.compile(r"\(traceback in |Fatal Python error|Segmentation fault")
NO_MEMORY = re.compile(r"MemoryError|can't allocate memory|Unable to allocate|out of memory", re.I)
BUG = re.compile(r"(?<![\w.])(KeyError|TypeError|IndexError|AttributeError|AssertionError|UnboundLocalError|NameError|"
                 r"ZeroDivisionError|RecursionError|StopIteration|BadZipFile|object is not|NoneType)\b")
# Settings that name a module; a message may name them in place of the module.
OF_MODULES = r"^fedmpi: (model|data\.name|data\.partition)\b"
# A function that a configuration names as a measure failed: it counts as the user's own, whoever wrote it.
OF_MEASURES = r"^fedmpi: evaluate\.measures: \w+(\.\w+)*:\w+: "
# Commands whose code 1 is an answer: some runs failed, a check did not pass.
ANSWERS = ("doctor", "verify", "sweep")
# Commands that may write in folders of runs.
GROWING = ("out", "new", "report", "tmp", "runs", "cache", "root")

Files = dict[str, tuple]


def list_files(folder: Path) -> Files:
    """Return the contents of a folder: for each path its kind, and its link, device, number or content."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in folders + names:
            path = Path(root, name)
            seen = os.lstat(path)
            kind = stat.S_IFMT(seen.st_mode)
            what = (os.readlink(path) if stat.S_ISLNK(kind) else hash_of_file(path) if stat.S_ISREG(kind)
                    and seen.st_size < 1 << 22 else seen.st_rdev)
            found[str(path.relative_to(folder))] = (kind, what)
    return found


def judge(case: Case, done: Done, folder: Path, before: Files, reference: Reference) -> tuple[str, str]:
    """Return "ok", "refused" or "fell short", and why."""
    words, text = case.commands[-1], done.out + done.error
    problem = (judge_text(case, done) or judge_end(case, words, done, folder) or judge_files(case, words, done, folder,
        before)
               or (judge_promise(case, done, folder, reference) if done.code == 0 and not done.end else "")
               or (judge_script(done.out) if done.code == 0 and words[0] == "submit" and "--dry-run" in words
                                                and "Usage:" not in done.out else ""))
    if problem:
        return "fell short", problem
    if done.end == "asked" or done.code == 75:
        return "ok", "asked to end"
    return ("ok", "") if done.code == 0 else ("refused", last_line(text))


def last_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.startswith("fedmpi")), "")[:200]


def judge_end(case: Case, words: list[str], done: Done, folder: Path) -> str:
    """Return what is wrong with the end of a command, "" if nothing is."""
    if done.end in ("waits", "hangs"):
        return f"hang: it {done.end}"
    if done.left:
        return "a process is left behind"
    if done.end == "asked":
        return "" if done.code == 75 else f"hang: it did not end, and answered SIGTERM with code {done.code}"
    if done.code < 0:
        return f"killed by signal {-done.code}"
    if done.code == 0 and not done.out.strip():
        return "code 0 without a word"
    if done.code == 75 and "--time-limit" not in words:
        return "code 75 without a reason"
    if done.code not in (0, 1, 2, 75):
        return f"code {done.code}"
    if done.code == 1 and words[0] not in ANSWERS and not has_begun(done, words):
        return f"code 1 before a run has begun: {last_line(done.error)}"
    if done.code and not SAID.search(done.error) and words[0] not in ANSWERS:
        return f"code {done.code} without a message"
    return ""


def has_begun(done: Done, words: list[str]) -> bool:
    """Say whether a run had begun: it has named its ranks or a round."""
    return words[0] == "run" and (re.search(r"^fedmpi: .*(rank \d+ of \d+ on|round \d+)", done.error, re.M) is not None)


def judge_text(case: Case, done: Done) -> str:
    """Return what is wrong with the output of a command, "" if nothing is."""
    text = done.out + done.error
    if "Traceback (most recent call last)" in text:
        return f"traceback: {text.strip().splitlines()[-1][:200]}"
    # The user's module may print anything.
    if found := CONTROL.search(text.replace(PRINTED, "") if case.own_code else text):
        return f"control character {found[0]!r} in {text[max(0, found.start() - 30):found.end() + 20]!r}"
    if case.own_code:
        if done.code in (1, 2) and not re.search(rf"\b{case.own_code}\b|{OF_MODULES}", done.error, re.M):
            return f"the message does not name the user's module: {last_line(done.error)}"
    elif not re.search(OF_MEASURES, done.error, re.M):
        if UNEXPECTED.search(text):
            return f"unexpected error: {last_line(done.error)}"
        if done.code and (found := BUG.search(done.error)) and "is damaged" not in done.error:
            return f"the words of a bug: {last_line(done.error)}"
    if NO_MEMORY.search(done.error) and not case.own_code:
        return f"memory: {last_line(done.error)}"
    if done.code == 2 and "Usage:" not in done.error:
        lines = done.error.strip().splitlines()
        if len(lines) > MAX_LINES or max(map(len, lines), default=0) > MAX_LINE:
            return f"a message of {len(lines)} lines, the longest of {max(map(len, lines))} characters"
    return ""


def judge_files(case: Case, words: list[str], done: Done, folder: Path, before: Files) -> str:
    """Return what is wrong with the files that a command left, "" if nothing is."""
    after = list_files(folder)
    for name in after.keys() - before.keys():
        # A killed process cannot remove its files.
        if TEMPORARY.search(name) and not done.end and "tmp" not in words:
            return f"left behind: {name}"
    outputs = tuple(os.path.normpath(name) for name in case.outputs if name)
    for name, (kind, what) in before.items():
        new = after.get(name)
        # A rename may take the place of a link to a file, which itself must stay as it is.
        if stat.S_ISLNK(kind) and (folder / os.path.dirname(name) / what).is_file():
            continue
        if not stat.S_ISREG(kind):
            if new is None and stat.S_ISDIR(kind):
                return f"a folder is gone: {name}"
            if new != (kind, what) and not (new and stat.S_ISDIR(kind)):
                return f"replaced: {name}, which was not a plain file"
        elif new != (kind, what) and not name.startswith((*outputs, *GROWING)) and name not in words:
            return f"a user's file was changed: {name}"
    # Whoever names a folder for the federations gets it there.
    asked = {word.rpartition("/")[2] for word in words if word.startswith("data.cache=../")}
    if extra := {path.name for path in folder.parent.iterdir()} - {folder.name} - asked:
        return f"written outside of the folder: {sorted(extra)[:3]}"
    # If a worker refuses, it ends rank 0 as well, and the traceback of the user's module stays in log.txt. This folder
    # is not a run, and the next start takes it over.
    own = case.own_code or re.search(OF_MEASURES, done.error, re.M)
    left = "out/config.yaml" if case.ranks > 1 or own else "out"
    if done.code == 2 and words[0] == "run" and "out" in words and left in after and "out" not in before:
        return "a folder is left of a run that was refused"
    return ""


def judge_promise(case: Case, done: Done, folder: Path, reference: Reference) -> str:
    """Say which promise of the case was not kept."""
    words = case.commands[-1]
    run = folder / ("run" if "run" in words[1:] else "new")
    if case.promise == "refused":
        return "accepted, and should be refused"
    if case.promise in ("digest", "history"):
        digest, wanted = digest_of_run(run), reference.digests[run.name == "run"]
        if digest != wanted:
            return f"silent difference: digest {digest[:16]} in place of {wanted[:16]}"
    if case.promise == "history" and run.name == "run" and "a new one starts" not in done.out and hash_of_history(
            run) != reference.history:
        return "silent difference: the history"
    # An older checkpoint takes the place of a damaged one, and the command says so.
    exported = folder / "new.safetensors"
    if case.promise == "export" and "after round 2" in done.out and hash_of_file(exported) != reference.exported:
        return "silent difference: the exported model"
    return ""


def judge_script(text: str) -> str:
    """Return bash's complaint about a job script, "" if there is none."""
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, errors="surrogateescape")
    return f"bash does not parse the script: {done.stderr.strip()[:200]}" if done.returncode else ""
