"""What a finished run found, read from its folder when it is asked for."""
from __future__ import annotations

import os
import warnings
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fedmpi.argument_names import name_arguments
from fedmpi.config.evaluation import NEW_CLIENTS_ENDING
from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.faults import choose_attackers, read_attack
from fedmpi.json_values import JsonObject
from fedmpi.paths import require_given_path
from fedmpi.storage import run_files, run_status
from fedmpi.task import find_task

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor, nn


class Result:
    """What a finished run found. If the run was continued since, or is at it, all that is read from its folder is
    refused by BadInput, since it would be that of another state than `values`.

    Args:
        folder: the run folder
        own_code: `model` may import classes that the run names and that are not built in

    Raises:
        BadInput: if the folder holds no finished run."""

    def __init__(self, folder: str | os.PathLike[str], own_code: bool = False):
        # a whole path, since the program may change its working folder
        self.folder = Path(require_given_path("folder", folder, "the folder of a run")).absolute()
        self.own_code = own_code
        run_status.read_settings(self.folder)
        found = run_status.read_outcome(self.folder)
        if found.result is None:
            raise BadInput(f"{self.folder} is {found.state}, after {found.round} rounds: it has no result yet; finish "
                           f"it with fedmpi.run(..., out={str(self.folder)!r}, resume='auto')")
        # result.json: the measures of the last round, and of the run as a whole
        self.values: JsonObject = found.result

    def __repr__(self) -> str:
        task = find_task(self.values)
        return (f"<Result of {self.values['method']}: {task.title} {task.format(self.values[task.key])} after "
                f"{self.values['rounds']} rounds, in {self.folder}>")

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the clients after the last round, between 0 and 1; nan if targets were learned."""
        value = self.values.get("accuracy_mean")
        return float("nan") if value is None else value

    @property
    def mse(self) -> float:
        """Mean over the clients of the mean squared error after the last round; nan if classes were learned."""
        value = self.values.get("mse_mean")
        return float("nan") if value is None else value

    @property
    def digest(self) -> str:
        """SHA-256 of the final state of the server and of all clients, as the command `fedmpi run` prints it."""
        return self.values["digest"]

    def refuse_continued(self) -> None:
        """Raise BadInput if the run's folder holds another result than that which `values` has, or none: the run was
        continued. It costs the reading of result.json."""
        with name_arguments():
            now = run_status.read_result(self.folder)
        if now is None or now["digest"] != self.digest:
            what = "was continued" if self.folder.is_dir() else "was moved or removed"
            raise BadInput(f"{self.folder} {what} since this result was read; call fedmpi.load_result again")

    @property
    def config(self) -> JsonObject:
        """All settings of the run, as nested mappings. Raises BadInput if the run was continued."""
        self.refuse_continued()
        return self._config

    @cached_property
    def _config(self) -> JsonObject:
        return run_status.read_settings(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        """Measures of every round, a row each; the index is `round`. docs/file-formats.md explains the columns.

        Raises BadInput if metrics.jsonl is missing or damaged, or the run was continued."""
        self.refuse_continued()
        return self._metrics

    @cached_property
    def _metrics(self) -> pd.DataFrame:
        pandas, lines = require_pandas(), run_status.read_metrics(self.folder)
        if not lines:
            raise BadInput(f"{self.folder / run_files.METRICS} is missing or damaged in its first line; `values` has "
                           "the measures of the last round")
        return pandas.DataFrame(lines).set_index("round")

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Return `round` (rounds,) and measures (rounds, clients[, width]); nan, or 0 for integers: not measured.

        Raises BadInput if history.h5 is missing, or the run was continued."""
        self.refuse_continued()
        return self._history

    @cached_property
    def _history(self) -> dict[str, np.ndarray]:
        from fedmpi.storage.history import read_history
        path = self.folder / run_files.HISTORY
        if not path.exists():
            raise BadInput(f"{path} is missing, and with it the measures of single clients; `values` and `metrics` "
                           "have their means")
        with name_arguments():
            return read_history(path)

    def clients(self, round: int | None = None) -> pd.DataFrame:
        """Return the measures of every client, a row each; the index is `client`. The last columns say how many samples
        it has in each part, and how many classes to train on. With `data.new_clients` the new ones are the last rows,
        and the column `new_client` marks them. Clients that the data name have a column `name`, and with `attack` the
        column `attacker` marks those that attack, which no mean over the clients counts.

        Args:
            round: an evaluated round, from 1; None: the last one

        Raises:
            BadInput: if that round was not evaluated, or clients.csv is damaged."""
        from fedmpi.data.client_table import read_client_numbers
        pandas, rounds = require_pandas(), self.history["round"].tolist()
        if round is not None and round not in rounds:
            raise BadInput(f"round {round!r} was not evaluated; these were: {', '.join(map(str, rounds))}")
        row = -1 if round is None else rounds.index(round)
        columns = {name: values[row] for name, values in self.history.items() if values.ndim == 2}
        new = {name.removesuffix(NEW_CLIENTS_ENDING): columns.pop(name)
               for name in [*columns] if name.endswith(NEW_CLIENTS_ENDING)}
        table = clean_clusters(pandas.DataFrame(columns))
        trained = len(table)
        if new:
            newcomers = pandas.DataFrame(new).assign(new_client=True)
            table = pandas.concat([table.assign(new_client=False), newcomers], ignore_index=True)
        if attack := read_attack(self.config):
            table["attacker"] = table.index.isin(choose_attackers(attack, trained, self.config["seed"]))
        if names := self.values.get("client_names"):
            table.insert(0, "name", names)
        table = table.assign(**read_client_numbers(self.folder / run_files.CLIENTS, len(table)))
        return table.rename_axis("client")

    def clusters(self) -> pd.DataFrame:
        """Return the cluster of every client in every evaluated round: a row for a round, a column for a client.
        The table has no columns if the method has no clusters."""
        pandas, table = require_pandas(), self.history["cluster"]
        rounds = pandas.Index(self.history["round"], name="round")
        known = (table >= 0).any()
        found = pandas.DataFrame(table if known else table[:, :0], index=rounds).rename_axis(columns="client")
        return found.mask(found < 0).astype("Int64")

    def model(self, client: int | None = None) -> nn.Module:
        """Return a trained network as a plain PyTorch module, on the CPU, in evaluation mode.

        Images that are stored as bytes go in as x / 127.5 - 1, shape (batch, channels, height, width).

        Args:
            client: number of the client whose model it is; None: the server's one model for everybody

        Raises:
            BadInput: if there is no such model, or no checkpoint, or the run was continued."""
        self.refuse_continued()
        from fedmpi.commands.export import load_model
        from fedmpi.process_state import isolate_computation
        with isolate_computation(), name_arguments():
            found = load_model(self.folder, require_client(client), self.own_code)
            for said in found.warnings:
                warnings.warn(said, stacklevel=2)
            if found.round < self.values.get("rounds", 0):
                warnings.warn(f"{self.folder}: the model is that of round {found.round} of {self.values['rounds']}, "
                              "since there is no later checkpoint that is sound", stacklevel=2)
            return found.network.eval()

    def samples(self, client: int, part: str = "test") -> tuple[Tensor, Tensor]:
        """Return a client's samples as `model(client)` takes them, (n, ...), and their labels or targets, (n,).

        Args:
            client: number of the client; those of `data.new_clients` follow the others
            part: train, validation or test

        Raises:
            BadInput: if there is no such client or part, no checkpoint, or if the data have changed since the run,
                or it was continued."""
        self.refuse_continued()
        from fedmpi.commands.export import load_samples
        with name_arguments():
            if (number := require_client(client)) is None:
                raise BadInput("client=None: give the number of a client")
            return load_samples(self.folder, number, part, self.own_code)

    def plot(self) -> Figure:
        """Return a Matplotlib figure of the mean accuracy, or squared error, by round. A notebook shows it, and
        `savefig` writes it. Raises BadInput if the run was continued."""
        self.refuse_continued()
        from fedmpi.report.figures.accuracy import draw_accuracy_by_round
        from fedmpi.report.results import collect_folder_results
        results = collect_folder_results([self.folder])
        return draw_accuracy_by_round(results, results.columns[0])


def require_client(client: int | float | None) -> int | None:
    """Return the number of a client, None for nobody's. Pandas makes floats of the numbers in a row of a table. Raises
    BadInput for what is not a whole number."""
    try:
        if client is None or int(client) == client:
            return None if client is None else int(client)
    except (TypeError, ValueError, OverflowError):
        pass
    raise BadInput(f"client={client!r}: give the number of a client, or None for the server's model")


def clean_clusters(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose column `cluster` holds integers, with no value for clients that are in no cluster; without
    the column if no client is in one."""
    if not (table["cluster"] >= 0).any():
        return table.drop(columns="cluster")
    return table.assign(cluster=table["cluster"].mask(table["cluster"] < 0).astype("Int64"))


def require_pandas() -> ModuleType:
    """Return pandas. Raises BadInput if it is not installed."""
    with require_extra("pandas", "tables are pandas DataFrames, and pandas is not installed", why=False):
        import pandas
    return pandas
