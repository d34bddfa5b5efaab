"""Errors, and the exit codes that scripts may rely on."""
from __future__ import annotations

from pathlib import Path

FINISHED = 0
FAILED = 1
BAD_INPUT = 2
# the run was stopped and wants to be started again (EX_TEMPFAIL of sysexits.h); it is saved, unless its round was given
# up before the first checkpoint
SAVED = 75
# How the message of a GivenUp ends
ROUND_GIVEN_UP = "the round is given up"


class FedmpiError(Exception):
    """A failure whose message is for the user: it says what happened, where, and what to do."""
    code = FAILED


class StorageError(FedmpiError):
    """A disk or folder refuses what a run writes. The setting `checkpoint.failure` says whether the run goes on."""


class GivenUp(FedmpiError):
    """The run was asked to stop and ended. It can continue from its last checkpoint, if it has one."""
    code = SAVED


class AlreadyFinished(FedmpiError):
    """The run has its result and is not run again.

    Args:
        folder: its run folder"""
    code = FINISHED

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


class CallbackError(Exception):
    """The function `on_round` of the user's program raised an exception, which is the __cause__ of this one."""


class BadInput(FedmpiError):
    """The user's input cannot be used. Before the first round this is a refusal: nothing was started.

    During a run `session.explain_failure` makes a failure of it, from which the run can be started again."""
    code = BAD_INPUT

    def reword(self, message: str) -> BadInput:
        """Return an error of the same kind and with the same cause that says something else."""
        new = type(self)(message)
        new.__cause__ = self.__cause__
        return new


class FolderInUse(BadInput):
    """Another run, which may be alive, holds the run folder."""


class FaultyCode(BadInput):
    """The user's own code failed before the first round. `__cause__` is its error."""
