"""The partitioners of Flower Datasets, as a partition."""
from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import io
import warnings
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.json_values import JsonObject


@dataclass(frozen=True)
class Flower:
    """A partitioner of the package flwr-datasets divides the samples.

    The samples are shuffled by the seed of the run first, as FederatedDataset shuffles them. `num_partitions`,
    `partition_by` (the label) and `seed` follow from the run; all other arguments are `settings`. Partitioners that
    divide features (Vertical...) are refused."""
    title = "flower"
    example = {"partitioner": "DirichletPartitioner", "settings": {"alpha": 0.5}}
    partitioner: Annotated[str, "name of a class of flwr_datasets.partitioner, such as ShardPartitioner"]
    settings: Annotated[JsonObject, "arguments of that class"] = field(default_factory=dict)

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Return the samples of each partition. Raises BadInput if the partitioner refuses, or makes another number."""
        with require_extra("flower", f"data.partition: {self.partitioner} needs flwr-datasets"):
            import datasets
            import flwr_datasets.partitioner
        cls = getattr(flwr_datasets.partitioner, self.partitioner, None)
        if not isinstance(cls, type) or "Vertical" in self.partitioner or self.partitioner == "Partitioner":
            names = [name for name in flwr_datasets.partitioner.__all__ if "Vertical" not in name]
            raise BadInput(f"data.partition.partitioner = {self.partitioner}: flwr-datasets has "
                           f"{', '.join(name for name in names if name != 'Partitioner')}; name one of them")
        order = rng.permutation(len(labels))
        # A partitioner asks for the number of rows, and for the label of each.
        table = datasets.Dataset.from_dict({"label": labels[order].tolist(), "sample": order.tolist()})
        run = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
        taken = inspect.signature(cls).parameters
        arguments = {name: value for name, value in run.items() if name in taken} | self.settings
        try:
            with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
                made = cls(**arguments)
                made.dataset = table
                parts = [np.array(made.load_partition(i)["sample"], np.int64) for i in range(made.num_partitions)]
        # Each partitioner has its own ways to say that it cannot divide these samples.
        except Exception as error:
            raise BadInput(f"data.partition: {self.partitioner} of flwr-datasets: {type(error).__name__}: "
                           f"{' '.join(str(error).split())}; change data.partition.settings or data.clients") from None
        if len(parts) != clients:
            raise BadInput(f"data.clients = {clients}: {self.partitioner} makes {len(parts)} partitions; set it to "
                           f"{len(parts)}")
        return parts, None

    def list_inputs(self) -> list[str]:
        """Return the version of the package, because another one may divide differently."""
        try:
            return [f"flwr-datasets {importlib.metadata.version('flwr-datasets')}"]
        except importlib.metadata.PackageNotFoundError:
            return []
