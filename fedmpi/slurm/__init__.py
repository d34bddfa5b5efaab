"""Slurm: job scripts, the time a job has left, and what it is."""
