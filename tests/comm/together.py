"""Ranks as threads of this process, for tests of collectives: they can assert, and see each other's results."""
from __future__ import annotations

import threading

from fedmpi.comm.mpi_world import World
from tests.sockets import SocketMPI, mesh

# Seconds until ranks that wait for ever fail the test: a safety net, not a measurement.
LIMIT = 120
# Time between two checks whether a rank has failed.
LOOK_S = .05


class Aborted(BaseException):
    """A rank ended the job with a code."""


def abort(code: int):
    raise Aborted(code)


def together(size: int, act) -> list:
    """Call act(world) on so many ranks at once; return what each returned, by rank. Raises what a rank raised."""
    ends, found, errors = mesh(size), [None] * size, []

    def rank(r: int):
        try:
            found[r] = act(World(SocketMPI(r, size, ends[r], abort)))
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for _ in range(int(LIMIT / LOOK_S)):
        if errors or not any(thread.is_alive() for thread in threads):
            break
        next((thread for thread in threads if thread.is_alive()), threads[0]).join(LOOK_S)
    else:
        raise AssertionError("a rank waits for ever")
    if errors:
        raise errors[0]
    for connected in ends:
        for end in connected.values():
            end.close()
    return found
