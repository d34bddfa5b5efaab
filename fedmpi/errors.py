"""Errors, and the exit codes that scripts may rely on."""

FINISHED = 0
FAILED = 1
BAD_INPUT = 2
# the run is saved and wants to be started again (EX_TEMPFAIL of sysexits.h)
SAVED = 75


class FedmpiError(Exception):
    """A failure whose message is for the user: it says what happened, where, and what to do."""
    code = FAILED


class StorageError(FedmpiError):
    """A disk or folder refuses what a run writes. The setting `checkpoint.failure` says whether the run goes on."""


class GivenUp(FedmpiError):
    """The run was asked to stop and ended. It can continue from its last checkpoint."""
    code = SAVED


class BadInput(FedmpiError):
    """The user's input cannot be run. Nothing was started and nothing was lost."""
    code = BAD_INPUT
