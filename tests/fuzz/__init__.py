"""Throw odd input at the program: `python -m tests.fuzz --help`; docs/testing.md explains the command."""
