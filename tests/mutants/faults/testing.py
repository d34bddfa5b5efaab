"""Faults planted into fedmpi/testing, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    ("fedmpi.testing.thread_ranks:run_ranks", "meeting.letters[rank, other].put(None)", "pass"),
    ("fedmpi.testing.subject:find_alternative", 'value if row["required"] else row["default"]', 'row["default"]')]
