"""What is installed beside the code: configurations and jobs, which commands know by name, and the template of a study.

    fedmpi run quickstart          is fedmpi run .../configs/quickstart.yaml
    fedmpi sweep digits            is fedmpi sweep .../jobs/digits.yaml
    fedmpi init mystudy            copies the template

In a checkout `configs` and `jobs` are links to its folders of these names; a wheel holds their files."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

from fedmpi.errors import BadInput

SHIPPED_FOLDER = Path(__file__).parent
SHIPPED_NAME = re.compile(r"[\w-]+")
# This ending keeps Python, pytest and linters from taking files of the template for parts of fedmpi.
TEMPLATE_ENDING = ".in"


def find_shipped(given: str | Path, kind: str) -> Path:
    """Return the path of a file that is given by its path, or by name if it came with fedmpi.

    A file that exists wins over a name. Of a name that is unknown the path is returned as it is.

    Args:
        given: path or name
        kind: `configs` or `jobs`"""
    path = Path(given)
    shipped = SHIPPED_FOLDER / kind / f"{given}.yaml"
    return shipped if SHIPPED_NAME.fullmatch(str(given)) and not path.is_file() and shipped.is_file() else path


def is_job_file(paths: list[str]) -> bool:
    """Say whether the arguments RUN|JOB of a command name one job, by its file or its name, and not folders of runs."""
    return len(paths) == 1 and not Path(paths[0]).is_dir()


def refuse_job_options(scale: str | None, out: str | None, hint: str = "") -> None:
    """Raise BadInput if an option was given that only a job has a use for, and no job; `hint` ends the error."""
    for option, value, what in (("--scale", scale, "chooses a variant of a job"),
                                ("--out", out, "says where the runs of a job are")):
        if value is not None:
            raise BadInput(f"{option} {value} {what}, and no job file was given; leave it out{hint}")


def list_shipped(kind: str) -> list[str]:
    """Return the names of the `configs` or `jobs` that came with fedmpi."""
    return sorted(path.stem for path in (SHIPPED_FOLDER / kind).glob("*.yaml"))


def name_hint(given: str | Path, kind: str) -> str:
    """Return what to add to an error about a file that is not there: the names that fedmpi knows, if `given` could be
    one of them."""
    return f"; names that need no file: {', '.join(list_shipped(kind))}" if SHIPPED_NAME.fullmatch(str(given)) else ""


def init_study(folder: Path) -> list[Path]:
    """Write the template of a study into a new or empty folder. Return the files.

    Raises:
        BadInput: if the folder holds something, or cannot be written. In the latter case it is left empty."""
    begun: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty; choose a new folder for the study")
        for path in sorted((SHIPPED_FOLDER / "study").iterdir()):
            if path.is_file():
                begun.append(folder / path.name.removesuffix(TEMPLATE_ENDING))
                shutil.copyfile(path, begun[-1])
        return begun
    except (OSError, ValueError) as error:
        for path in begun:
            path.unlink(missing_ok=True)
        raise BadInput(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}; choose another folder"
                       ) from None
