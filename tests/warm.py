"""A warm Python: a program that looks like `python`, whose `-m fedmpi` is performed by a fork of the test process. So
is `-m tests.MODULE`.

The fork has PyTorch loaded. So a start costs a twentieth of a second, while the imports of a new process cost three
seconds of processor time. The program is an executable file, for lines of bash, sweeps and real launchers.
`warm_client.py` hands over its words, folder, environment and open files (those of a launcher among them), and lives as
long as the command. Signals are passed on to the command. If the client is killed the command is killed, too, and the
client ends as the command does. Ranks under a launcher load the real MPI library, which is never imported in the test
process (see conftest.py); a single process gets the one of sockets.py."""
from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import forked, launch
from tests.sockets import Package, SocketMPI

CLIENT = Path(__file__).with_name("warm_client.py")
# that a message can carry
MAX_FILES = 250
# no launcher gives its files numbers from here on
FIRST_SPARE_FILE = 512


@contextmanager
def python():
    """Yield the path of a warm Python with a command `fedmpi` beside it; at the end stop everything that it started."""
    forked.load()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen()
        path = Path(folder, "python")
        for name, words in (("python", ""), ("fedmpi", "-m fedmpi ")):
            client = shlex.join([sys.executable, "-IS", str(CLIENT), f"{folder}/socket"])
            path.with_name(name).write_text(f'#!/bin/sh\nexec {client} {words}"$@"\n')
            path.with_name(name).chmod(0o755)
        ours, its = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()
        server = os.fork()
        if not server:
            ours.close()
            forked.leave(lambda: serve(listener, its, path))
        gc.unfreeze()
        its.close()
        try:
            yield path
        finally:
            ours.close()
            os.waitpid(server, 0)


def serve(listener: socket.socket, leash: socket.socket, path: Path) -> None:
    """Start what clients ask for until the other end of the leash is closed."""
    # The process of each connection.
    jobs = {}
    while True:
        ready = select.select([listener, leash, *jobs], [], [], forked.LOOK_S if jobs else None)[0]
        # Nobody waits any more for a job whose client is gone.
        for end in jobs if leash in ready else set(ready) & jobs.keys():
            os.kill(jobs[end], signal.SIGKILL)
        if leash in ready:
            for pid in jobs.values():
                os.waitpid(pid, 0)
            return
        if listener in ready:
            start(listener.accept()[0], path, jobs)
        for end, pid in list(jobs.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                with suppress(OSError):
                    end.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                end.close()
                del jobs[end]


def start(connection: socket.socket, path: Path, jobs: dict) -> None:
    """Fork the process that a client asks for, and send the client its process number."""
    _, files, *_ = socket.recv_fds(connection, 1, MAX_FILES)
    words, folder, environment, numbers = json.loads(connection.makefile().readline())

    def command():
        take_over_files(files, numbers)
        os.environ.clear()
        os.environ.update(environment)
        # Forget the mpi4py of the tests.
        del sys.modules["mpi4py"]
        if launch.rank_of(environment) is None:
            sys.modules["mpi4py"] = Package(SocketMPI(0, 1, {}))
        os.chdir(folder)
        sys.executable, sys.argv = str(path), words[1:]
        sys.path.insert(0, folder)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    jobs[connection] = pid = os.fork()
    if not pid:
        forked.leave(command, exit_process)
    for file in files:
        os.close(file)
    connection.sendall(b"%d\n" % pid)


def exit_process(code: int) -> None:
    """End this process. Only MPICH, which has to inform its launcher, needs C's exit, which takes torch .3 s."""
    if "mpi4py.MPI" in sys.modules:
        ctypes.CDLL(None).exit(code)
    os._exit(code)


def take_over_files(files: list[int], numbers: list[int]) -> None:
    """Give this process the client's open files under their numbers, and the signal handlers of a new process."""
    os.setpgid(0, 0)
    forked.reset_signals()
    spare = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_SPARE_FILE) for file in files]
    for file, number in zip(spare, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    for file in set(files) - set(numbers):
        os.close(file)
    forked.reopen()
