"""Checks and timings for the first day with a GPU. See gpu_day.py beside this folder."""
