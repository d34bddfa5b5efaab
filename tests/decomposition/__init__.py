"""The decomposition suite: the same bits on any number of ranks, however a run is hosted, stacked, spilled, restarted.

    python -m tests.decomposition [--quick] [--methods a,b] [--mpiexec] [--out FILE.json]"""
