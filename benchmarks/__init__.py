"""Benchmarks of speed, run from a checkout as `python -m benchmarks NAME`. They are not part of the installed package.

Each compares two things in one run on synthetic samples of real shapes, because only time matters: the result is a
ratio that survives another machine. The GPU day is a command of its own, `python benchmarks/gpu_day.py`."""
