"""Plant faults into fedmpi and see whether the suite notices: `python -m tests.mutants`. It is not part of the suite.

To test your own change (the first call also maps which test runs which line; the map is kept in `.mutants/`):

    python -m tests.mutants --package server --count 40 --jobs 1

There are two kinds of faults. Mechanical ones (`operators.py`) are drawn by a fresh seed, which is printed, so nobody
can have written tests for them. With `--own` the hand-written ones of `faults/PACKAGE.py` are planted instead.

`suite.py` runs every test file once under a tracer (`tracer.py`, `record.py`), which records the lines that each test
runs, in its own process, its forks and its subprocesses, and its cost. For each mutant a warm process (`worker.py`)
forks a child that runs the tests of the mutated line, cheap and specific ones first, until one fails or the budget is
spent. A mutant that outlives its budget counts as survived, so the rate is a lower bound; so does one whose line no
test runs. `equivalent.py` lists mutants that change nothing that a user could see; they are left out of the rate.
"""
