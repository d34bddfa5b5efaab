"""The ways in which a run ends badly, and the exit codes that scripts may rely on."""

FINISHED = 0
FAILED = 1
BAD_INPUT = 2
SAVED = 75      # "saved, start me again" (EX_TEMPFAIL of sysexits.h)


class FedmpiError(Exception):
    """A failure whose message is meant for the user: what happened, where, and the remedy."""
    code = FAILED


class StorageError(FedmpiError):
    """A disk or folder refuses what a run writes; `checkpoint.failure` says whether it goes on without."""


class GivenUp(FedmpiError):
    """A round that would take too long after the run was asked to stop: it goes on from the last checkpoint."""
    code = SAVED


class BadInput(FedmpiError):
    """The user's input cannot be run: nothing was started, nothing was lost."""
    code = BAD_INPUT
