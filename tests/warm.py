"""A warm Python: who starts it as `python -m fedmpi` has it done by a fork of this process, which has loaded PyTorch.

A start costs a twentieth of a second, where the imports of a new process cost three seconds of processor time. It is an
executable file, for bash lines, sweeps and real launchers: `warm_client.py` hands over its words, folder, environment
and open files (a launcher's among them) and lives as long as the command. What it is sent as a signal is passed on, the
command dies with it if it is killed, and it ends as the command does. Ranks under a launcher load the real MPI library,
which is never imported here (see conftest.py); a process by itself has the one of sockets.py."""
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
FILES = 250       # most open files that a message can carry
SPARE = 512       # from here on no launcher numbers its files


@contextmanager
def python():
    """Yield the path of a warm Python, beside a command `fedmpi`; it ends with all that it has started."""
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
    jobs = {}      # connection -> process
    while True:
        ready = select.select([listener, leash, *jobs], [], [], forked.LOOK_S if jobs else None)[0]
        for end in jobs if leash in ready else set(ready) & jobs.keys():      # nobody waits for it any more
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
    """Fork the process that a client asks for, and tell it the number."""
    _, files, *_ = socket.recv_fds(connection, 1, FILES)
    words, folder, environment, numbers = json.loads(connection.makefile().readline())

    def command():
        surroundings(files, numbers)
        os.environ.clear()
        os.environ.update(environment)
        del sys.modules["mpi4py"]      # that of the tests
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
    """End this process; in C's way, which takes torch .3 s, only if MPICH then has to take leave of its launcher."""
    if "mpi4py.MPI" in sys.modules:
        ctypes.CDLL(None).exit(code)
    os._exit(code)


def surroundings(files: list[int], numbers: list[int]) -> None:
    """Give this process the client's open files, under their numbers, and a new process's signals."""
    os.setpgid(0, 0)
    forked.reset_signals()
    spare = [fcntl.fcntl(file, fcntl.F_DUPFD, SPARE) for file in files]
    for file, number in zip(spare, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    for file in set(files) - set(numbers):
        os.close(file)
    forked.reopen()
