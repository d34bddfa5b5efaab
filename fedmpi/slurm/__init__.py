"""Slurm: the job that this process belongs to, the time it has left, job scripts and how they are submitted."""
