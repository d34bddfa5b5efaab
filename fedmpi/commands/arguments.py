"""The arguments and options that several commands share, with their help."""
from __future__ import annotations

from typing import Annotated

import typer

# No cluster has as many cores; a plan has a row for each rank.
MOST_RANKS = 1_000_000

ConfigFile = Annotated[str, typer.Argument(help="YAML file: a diff of the defaults; or the name of one that came with "
                                                "fedmpi, e.g. quickstart", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, typer.Argument(help="e.g. train.lr=0.01 method=fedavg", metavar="KEY=VALUE")]
Name = Annotated[str | None, typer.Argument(help="explain this one", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
RunFolders = Annotated[list[str], typer.Argument(help="run folders, finished or not", metavar="RUN...")]
JobFile = Annotated[str, typer.Argument(help="YAML file: rows, columns and seeds of runs; or the name of one that came "
                                             "with fedmpi, e.g. digits", metavar="JOB")]
Scale = Annotated[str | None, typer.Option(help="a smaller variant that the job names")]
RunIn = Annotated[str | None, typer.Option(
    help="run folder; default: runs/NAME-001, -002, ..., or that of the checkpoint to resume")]
RunsIn = Annotated[str | None, typer.Option(help="folder of the job's runs; default: runs/JOB[-SCALE]")]
ReportIn = Annotated[str | None, typer.Option(help="folder to write to; default: OUT/report, or report")]
TableMeasures = Annotated[list[str] | None, typer.Option(
    "--measure", help="what the table shows: a name in result.json, such as accuracy_worst_decile; give it again for a "
                      "further table; default: the job's; of run folders the accuracy in the round chosen on "
                      "validation samples, or else in the best round")]
PlannedRanks = Annotated[int, typer.Option(min=1, max=MOST_RANKS, help="ranks to plan, with the server's")]
StepRate = Annotated[float | None, typer.Option(
    help="with --dry-run: steps a second of one process; default: measured here")]
OfClient = Annotated[int | None, typer.Option(
    help="the model by which this client is evaluated; default: the global one")]
ForPrint = Annotated[bool, typer.Option(
    "--print", help="figures for papers: PDF files, too, and PNG files of 300 dpi; takes longer")]
