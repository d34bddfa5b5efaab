"""Settings of evaluation: when and on which samples clients are evaluated, by which measures, and when a run ends."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmpi import registry
from fedmpi.hints import find_close_name
from fedmpi.settings import Ge

# Other measures and columns have these names, or names that begin with one of them and an underscore.
TAKEN_COLUMNS = ("accuracy", "f1", "loss", "round", "cluster", "embedding", "new_client", "lam", "T", "E")
# Tables of clients have further columns of these names, see Result.clients.
CLIENT_COLUMNS = ("client", "name", "attacker", "train_samples", "validation_samples", "test_samples", "train_classes")
# What names of columns end with: which model of a client was measured, or on which samples; and those of new clients.
MODEL_ENDINGS = ("_after", "_unadapted", "_validation")
NEW_CLIENTS_ENDING = "_new_clients"


def is_taken(column: str) -> bool:
    """Say whether another column may have this name."""
    return (column in (*TAKEN_COLUMNS, *CLIENT_COLUMNS)
            or column.startswith(tuple(f"{name}_" for name in TAKEN_COLUMNS))
            or column.endswith((*MODEL_ENDINGS, NEW_CLIENTS_ENDING)))


def name_column(name: str) -> str:
    """Return the name of a measure in metrics.jsonl and history.h5: of one's own, that of its function."""
    return name.rpartition(":")[2]


@dataclass(frozen=True)
class Evaluate:
    """When clients are evaluated, on which samples, and by which measures."""
    title = "evaluate"
    renamed = {"after": "after_training"}
    every: Annotated[int, Ge(0), "rounds between evaluations; 0: only the last round"] = 1
    on: Annotated[Literal["test", "validation"], "samples to evaluate on; use validation to choose settings"] = "test"
    after_training: Annotated[Literal["participants", "all", "off"],
                              "clients evaluated again right after local training, if these "
                              "weights are others"] = "participants"
    measures: Annotated[tuple[str, ...], "further measures of each client: auc, balanced_accuracy, calibration_error, "
                        "or your own as module:function of logits and labels"] = ()
    embeddings: Annotated[tuple[int, ...], "rounds after which the clients' heads are stored for t-SNE figures"] = ()

    def __post_init__(self) -> None:
        if any(t < 1 for t in self.embeddings):
            raise ValueError(f"embeddings = {list(self.embeddings)}: rounds count from 1")
        for name in self.measures:
            self.refuse_measure(name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the further measures in metrics.jsonl and history.h5."""
        return tuple(map(name_column, self.measures))

    def refuse_measure(self, name: str) -> None:
        """Raise ValueError for a measure that is not known, or whose name is taken. Own code is not imported."""
        where, column = f"measures = {list(self.measures)}", name_column(name)
        if ":" not in name and name not in (known := registry.list_available("measures")):
            close = find_close_name(name, known)
            raise ValueError(f"{where}: {name!r} is not known; there are {', '.join(known)}, or your own as "
                             f"module:function{f' (did you mean {close}?)' if close else ''}")
        if not column.isidentifier():
            raise ValueError(f"{where}: {name!r} should be module:function, and the function's name becomes a column")
        if self.columns.count(column) > 1:
            raise ValueError(f"{where}: two measures are called {column}; leave one out, or rename your function")
        if is_taken(column):
            raise ValueError(f"{where}: {name!r} cannot be called {column}, as other columns of metrics.jsonl and "
                             "history.h5 are; rename your function")


@dataclass(frozen=True)
class StopSettings:
    """Early stopping: when a run ends before its last round."""
    title = "stop"
    patience: Annotated[int, Ge(1), "end the run after this many rounds without a better mean accuracy (or error) over "
                        "clients"]
    on: Annotated[Literal["validation"], "samples that decide; never the test samples"] = "validation"
