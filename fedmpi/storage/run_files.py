"""The names of what a run leaves in its folder. Code that reads or writes one of these files
takes its name from here, but for the job script of slurm/ and the contract of methods, which look from outside.

docs/file-formats.md says what each holds."""
from __future__ import annotations

# the resolved configuration
CONFIG = "config.yaml"
# what each client holds, see fedmpi.data.client_table
CLIENTS = "clients.csv"
# a line per round
METRICS = "metrics.jsonl"
# the measures of each client in each evaluated round, see fedmpi.storage.history
HISTORY = "history.h5"
# the folder of fedmpi.storage.checkpoint
CHECKPOINTS = "checkpoints"
# what the run said
LOG = "log.txt"
# written last: the run is done
RESULT = "result.json"
# which process may write in the folder, see fedmpi.storage.lock
LOCK = "lock"

# Those that are written as a whole, or grow by a line.
SMALL_FILES = (CONFIG, CLIENTS, METRICS, RESULT)
