"""A write in a thread gets all blocks in order or fails, its errors reach the main thread, and no wait is endless."""
from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from fedmpi.errors import StorageError
from fedmpi.storage.background import Abandoned, BackgroundWrite
from fedmpi.storage.folder import RunFolder


def test_it_writes_all_blocks_in_order():
    written = []

    def write(blocks):
        written.extend(blocks)
        assert threading.current_thread() is not threading.main_thread()
        return Path("done")
    background = BackgroundWrite(write, 2)
    background.feed(iter(range(9)))
    assert background.result() == Path("done") and written == [*range(9)]
    assert background.done and background.seconds > 0


def test_feeding_waits_for_the_disk_if_too_many_blocks_wait():
    free, most = threading.Semaphore(0), []

    def write(blocks):
        for _ in blocks:
            most.append(background.blocks.qsize())
        return Path()

    def slow():
        for block in range(20):
            if block == 3:
                free.release()
            yield block
    background = BackgroundWrite(lambda blocks: free.acquire() and write(blocks), 3)
    # The fourth block would never be asked for if three could not wait.
    background.feed(slow())
    background.result()
    assert len(most) == 20 and max(most) <= 3


@pytest.mark.parametrize("failing, said", [
    (True, "what was being written is lost, too: the disk is full"), (False, "")])
def test_only_a_write_that_failed_by_itself_is_a_loss_to_tell_of(failing, said):
    """A run that fails while it hands the blocks over gives the write up, and says why it failed."""
    def write(blocks):
        if failing:
            raise StorageError("the disk is full")
        return Path(str([*blocks]))
    background = BackgroundWrite(write, 9)
    background.blocks.put(1)
    background.wait()
    assert background.path is None and background.describe_loss() == said


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_error_of_the_write_reaches_the_main_thread(taken):
    """The error may happen anywhere, also after the last block; the remaining blocks are thrown away."""
    def write(blocks):
        for _ in range(taken + 1):
            next(blocks, None)
        raise StorageError("the disk is full")
    background = BackgroundWrite(write, 1)
    background.feed(range(5))
    with pytest.raises(StorageError, match="the disk is full"):
        background.result()
    with pytest.raises(StorageError, match="the disk is full"):
        background.result()


def test_blocks_that_end_with_an_error_are_not_taken_for_all_of_them():
    seen = []

    def write(blocks):
        try:
            return Path(str([*blocks]))
        except Abandoned as error:
            seen.append(error)
            raise

    def failing():
        yield 1
        raise KeyError("a rank failed")
    background = BackgroundWrite(write, 1)
    with pytest.raises(KeyError, match="a rank failed"):
        background.feed(failing())
    background.wait()
    assert len(seen) == 1 and background.path is None


def test_a_run_that_ends_while_it_hands_over_blocks_waits_for_no_more(tmp_path):
    """A worker that fails ends the job while rows are gathered, and the folder is unlocked there."""
    folder = RunFolder.claim(tmp_path / "run", resume=False)
    got = []
    background = BackgroundWrite(lambda blocks: got.append([*blocks]) or Path(), 1)
    folder.begin_write(background)

    def ending():
        yield 1
        folder.release()
        assert background.done and not folder.lock.path.exists()
        yield 2
    for do in (lambda: background.feed(ending()), background.result):
        with pytest.raises(Abandoned):
            do()
    assert got == []


def begin_held_write(place):
    """Begin a write in a new folder that ends when `free` is set; return folder, write, `free`, and whether the folder
    was locked then."""
    folder, free, seen = RunFolder.claim(place / "run", resume=False), threading.Event(), []

    def write(blocks):
        free.wait()
        seen.append(folder.lock.path.exists())
        return Path()
    background = BackgroundWrite(write, 1)
    folder.begin_write(background)
    background.feed([])
    return folder, background, free, seen


def test_a_folder_stays_locked_until_nothing_is_written_in_it(tmp_path):
    folder, _, free, seen = begin_held_write(tmp_path)
    threading.Timer(.05, free.set).start()
    folder.release()
    assert seen == [True] and not folder.lock.path.exists()


def test_a_folder_stays_locked_if_ctrl_c_ends_the_wait(tmp_path):
    """Python 3.11 takes a thread for ended if Ctrl-C ends a `join` of it."""
    folder, background, free, seen = begin_held_write(tmp_path)
    press = threading.Timer(.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    # A shell that starts the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            press.start()
            folder.end_write(wait=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not background.done
    threading.Timer(.05, free.set).start()
    folder.release()
    assert seen == [True] and not folder.lock.path.exists()


def test_a_folder_stays_locked_while_the_last_write_is_waited_for(tmp_path):
    """The heartbeat's thread may end the run while the main thread waits for the checkpoint."""
    folder, background, free, seen = begin_held_write(tmp_path)
    assert folder.end_write(wait=False) is None
    threading.Timer(.05, folder.release).start()
    threading.Timer(.2, free.set).start()
    assert folder.end_write(wait=True) == (Path(), background.seconds) and folder.end_write(wait=True) is None
    assert seen == [True]
