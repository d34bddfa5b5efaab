"""The decomposition suite: a run has the same bits on any ranks, however it is hosted, stacked, spilled or restarted.

    python -m tests.decomposition [--quick] [--methods a,b] [--mpiexec] [--out FILE.json]"""
