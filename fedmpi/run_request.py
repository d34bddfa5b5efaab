"""What the user asks for when a run is started."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

# name of the runs of a configuration that is not a file
UNNAMED = "run"


@dataclass(frozen=True)
class RunRequest:
    """What the user asks for: see the command `fedmpi run`.

    Args:
        config: path of a configuration, or its settings as a mapping
        overrides: settings that replace the configuration's, as `key=value` texts or as a mapping
        out: run folder; None: that of the checkpoint to resume, else runs/NAME-001 or the next number that is free
        resume: "auto" or the path of a checkpoint; None: start from the beginning
        time_limit: stop by itself before so much time is over, as Slurm writes it
        ranks: refuse to start on any other number of MPI ranks
        accept_changed_code: continue even if the user's own code was changed since the checkpoint"""
    config: str | Path | Mapping[str, object]
    overrides: Sequence[str] | Mapping[str, object] = ()
    out: str | None = None
    resume: str | None = None
    time_limit: str | None = None
    ranks: int | None = None
    accept_changed_code: bool = False

    @property
    def words(self) -> list[object]:
        """Return what must be the same on all ranks: everything."""
        return [getattr(self, option.name) for option in fields(self)]

    @property
    def source(self) -> str | Path:
        """Return the path of the configuration, by which its runs are named, or UNNAMED if it is a mapping."""
        return UNNAMED if isinstance(self.config, Mapping) else self.config
