"""The first day with a GPU: what is right there, and how fast. See gpu_day.py beside this folder."""
