"""What stands for `python` and hands its command to a warm process, see warm.py: `warm_client.py SOCKET WORDS`.

Other words than `-m fedmpi ...` are for a new process."""
import json
import os
import signal
import socket
import sys
from contextlib import suppress

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def open_files() -> list[int]:
    found = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):      # the one by which the folder was read
            os.fstat(int(name))
            found.append(int(name))
    return found


def main(place: str, words: list[str]) -> None:
    if words[:2] != ["-m", "fedmpi"]:
        os.execv(sys.executable, [sys.executable, *words])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)      # until there is somebody to pass them on to
    numbers, server = open_files(), socket.socket(socket.AF_UNIX)
    server.connect(place)
    socket.send_fds(server, [b"x"], numbers)
    server.sendall(json.dumps([words, os.getcwd(), dict(os.environ), numbers]).encode() + b"\n")
    for number in numbers:
        if number > 2:      # mpiexec waits for the end of all who hold its own
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
        with suppress(OSError):      # of SIGKILL there is no other way
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
