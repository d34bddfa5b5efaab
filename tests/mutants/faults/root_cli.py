"""Faults planted in fedmpi.cli, fedmpi.config.load and fedmpi.errors: words, codes, and YAML as it is read."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [("fedmpi.cli:run", "out, resume, time_limit, ranks,",
                                       "out, None, time_limit, ranks,"),
                                      ("fedmpi.cli:run", "sys.exit(run_command", "print(run_command"),
                                      ("fedmpi.cli:plan", "arguments.PlannedRanks = 3", "arguments.PlannedRanks = 2"),
                                      ("fedmpi.cli:submit", "account=account", "account=partition"),
                                      ("fedmpi.cli:submit", "restarts=restarts", "restarts=50"),
                                      ("fedmpi.cli:submit", "profile, prepare, dry_run,", "profile, True, dry_run,"),
                                      ("fedmpi.cli:sweep", "Sweep(runs, local or 1, ranks or 1,",
                                       "Sweep(runs, ranks or 1, local or 1,"),
                                      ("fedmpi.cli:sweep", "ranks or 1, rate)", "ranks or 1, None)"),
                                      ("fedmpi.cli:sweep", "sys.exit(code)", "sys.exit(0)"),
                                      ("fedmpi.cli:sweep", '"cpus": cpus', '"cpus": None'),
                                      ("fedmpi.cli:compare", "Path(first), Path(second)", "Path(second), Path(first)"),
                                      ("fedmpi.cli:export", "Path(out), client, ", "Path(out), client or None, "),
                                      ("fedmpi.cli:bench", "typer.Exit(BAD_INPUT)", "typer.Exit"),
                                      ("fedmpi.cli:doctor", '= "."', '= "runs"'),
                                      ("fedmpi.cli:version", "raise typer.Exit", "raise typer.Exit(1)"),
                                      ("fedmpi.errors:GivenUp", "code = SAVED", "code = FAILED")]
