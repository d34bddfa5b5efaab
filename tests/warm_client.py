"""Take the place of `python` and hand the command to a warm process (see warm.py): `warm_client.py SOCKET WORDS`.

The command is a module of fedmpi or of its tests, `-m fedmpi ...`. Other words start a new process."""
import json
import os
import signal
import socket
import sys
from contextlib import suppress

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def open_files() -> list[int]:
    """Return the numbers of the open files of this process."""
    found = []
    for name in os.listdir("/dev/fd"):
        # The file by which the folder was read is closed again.
        with suppress(OSError):
            os.fstat(int(name))
            found.append(int(name))
    return found


def main(place: str, words: list[str]) -> None:
    """Hand over words, folder, environment and open files, pass signals on, and end as the command does."""
    if words[:1] != ["-m"] or words[1].split(".")[0] not in ("fedmpi", "tests"):
        os.execv(sys.executable, [sys.executable, *words])
    # Keep signals until there is a process to which they can be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    numbers, server = open_files(), socket.socket(socket.AF_UNIX)
    server.connect(place)
    socket.send_fds(server, [b"x"], numbers)
    server.sendall(json.dumps([words, os.getcwd(), dict(os.environ), numbers]).encode() + b"\n")
    # mpiexec waits until all processes that hold its files have ended.
    for number in numbers:
        if number > 2:
            os.close(number)
    answers = server.makefile()
    pid = int(answers.readline())

    def pass_on(number, frame):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = int(answers.readline() or 1)
    if code < 0:
        # The handling of SIGKILL cannot be set.
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
