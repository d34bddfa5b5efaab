"""Which run folder a start takes, the one that the user names, that of the checkpoint to continue, or a new one, and
from which of its checkpoints it continues."""
from __future__ import annotations

import filecmp
import itertools
import os
import re
from pathlib import Path

from fedmpi.errors import BadInput, StorageError
from fedmpi.paths import refuse_empty_path
from fedmpi.storage import checkpoint, run_files
from fedmpi.storage.folder import RunFolder, holds_run
from fedmpi.storage.listing import list_checkpoints

# the value of --resume that stands for the newest good checkpoint of the run folder
NEWEST_CHECKPOINT = "auto"


def claim_folder(config_path: str | Path, out: str | None, resume: str | None) -> RunFolder:
    """Lock the folder of a start, which may hold a run only if the start continues that run. Raises BadInput."""
    refuse_empty_path("--out", out)
    path = pick_folder(config_path, out, resume)
    if not out and not (resume == NEWEST_CHECKPOINT or find_folder_of(resume)):
        return claim_new_folder(path)
    return RunFolder.claim(path, continues_run(path, resume))


def claim_new_folder(path: Path) -> RunFolder:
    """Lock the first folder from NAME-NUMBER on that is not there yet. Of starts at the same moment, the one that makes
    a folder has it, and the others go on to the next number. Raises BadInput."""
    stem, number = path.name.rsplit("-", 1)
    for candidate in itertools.count(int(number)):
        path = path.with_name(f"{stem}-{candidate:03d}")
        try:
            path.mkdir(parents=True)
        except OSError:
            if os.path.lexists(path):
                continue
            # claim says what is wrong
            break
        return RunFolder.claim(path, resume=False, new=True)
    return RunFolder.claim(path, resume=False)


def pick_folder(config_path: str | Path, out: str | None, resume: str | None) -> Path:
    """Return the folder of a start, which is not locked yet: `out`, or else that of the checkpoint `resume`, or else
    the next number or, with `--resume auto`, the last one."""
    if out:
        return Path(out)
    return find_folder_of(resume) or name_next_folder(config_path, resume == NEWEST_CHECKPOINT)


def name_next_folder(config_path: str | Path, resume: bool) -> Path:
    """Return runs/STEM-001, or the first number after all existing ones. To resume, return the folder of the run that
    wrote the configuration, or else the last existing one that a run has left more than its log in, if there is one."""
    given, stem = Path(config_path), Path(config_path).stem
    beside = given.parent
    if resume and given.name == run_files.CONFIG and (beside / run_files.LOG).exists() and holds_run(beside):
        return beside
    found = [(int(match[1]), path) for path in Path("runs").glob("*")
             if (match := re.fullmatch(re.escape(stem) + r"-(\d{3,})", path.name))]
    begun = [(number, path) for number, path in found if resume and holds_run(path)]
    last = max((number for number, _ in begun or found), default=0)
    return Path("runs") / f"{stem}-{max(last, 1) if resume else last + 1:03d}"


def find_folder_of(resume: str | None) -> Path | None:
    """Return the run folder in which a checkpoint lies, None if it lies in none."""
    if resume is None or resume == NEWEST_CHECKPOINT:
        return None
    return find_run_above(Path(resume).parent)


def find_run_above(checkpoints: Path) -> Path | None:
    """Return the run folder whose checkpoints lie in a folder, None if it is not that of a run."""
    if not checkpoints.name:
        checkpoints = checkpoints.absolute()
    return checkpoints.parent if checkpoints.name == run_files.CHECKPOINTS and holds_run(checkpoints.parent) else None


def continues_run(path: Path, resume: str | None) -> bool:
    """Say whether a start may go on in a folder that holds a run: with `--resume auto`, from one of its checkpoints, or
    from another run's while at most a copy of that is saved there, which a start has left that was killed before its
    first checkpoint. Else another run's checkpoint would overwrite the run."""
    if resume is None or resume == NEWEST_CHECKPOINT:
        return resume is not None
    if not (holds_other_checkpoint(path, resume) or os.path.lexists(path / run_files.RESULT)):
        return True
    return os.path.realpath(Path(resume).parent) == os.path.realpath(path / run_files.CHECKPOINTS)


def holds_other_checkpoint(path: Path, resume: str) -> bool:
    """Say whether a run has left a checkpoint in its folder that is no copy of `resume`; also if that cannot be
    known."""
    try:
        saved = list_checkpoints(path / run_files.CHECKPOINTS)
        return not all(filecmp.cmp(one, resume, shallow=False) for one in saved)
    except (StorageError, OSError):
        return True


def find_resume_checkpoint(folder: RunFolder, resume: str | None) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to continue from, and what to tell the user of those that were refused."""
    if resume is None:
        return None, []
    if resume != NEWEST_CHECKPOINT:
        path = Path(resume)
        if path.is_dir():
            run = find_run_above(path) or path
            raise BadInput(f"--resume {resume} is a folder: give a checkpoint file, or --out {run} --resume auto")
        if not os.path.lexists(path) and resume.lower() in (NEWEST_CHECKPOINT, "latest", "last", "newest", "best"):
            raise BadInput(f"--resume {resume}: there is no such file; give --resume auto for the newest checkpoint")
        return path, []
    newest, refused = checkpoint.find_newest(folder.checkpoints)
    warnings = [f"refused {why}" if str(bad) in why else f"refused {bad}: {why}" for bad, why in refused]
    if refused and newest is None:
        raise BadInput("\n".join(warnings) + f"\nno checkpoint in {folder.checkpoints} can be used; start a new run "
                       "with another --out")
    return newest, warnings
