"""What a report reads from a job or from folders: runs, rows, columns, seeds, and the state of each run."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import BadInput
from fedmpi.report import latex, tables, write
from fedmpi.report.command import list_given_runs, report_paths
from fedmpi.report.results import ReportRun, Results, collect_folder_results, collect_job_results, place_runs
from fedmpi.report.significance import list_sample_differences
from fedmpi.sweeps import job as jobfile
from tests.report import made
from tests.sweeps import jobs


@pytest.fixture
def job(tmp_path):
    """A job and its planned runs, none of which has begun."""
    path = jobs.write(tmp_path, tmp_path / "cache", seeds=[5, 7], baseline="Local",
                      also={"seconds": {"Local": {"beta 1": 3}}})
    return (read := jobfile.load_job(path)), jobfile.expand(read, path, tmp_path / "out", None)


def test_the_runs_of_a_job(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = collect_job_results(*job, "fedmpi sweep job.yaml")
    assert (found.title, found.command, found.seeds) == ("digits", "fedmpi sweep job.yaml", [5, 7])
    assert found.baseline == "Local"
    assert found.rows == ["FedAvg", "FedMHC, weak", "Local"] and found.columns == ["beta .3", "beta 1"]
    assert found.measures == {"seconds": {"Local": {"beta 1": 3}}, "accuracy_best_on_test": {
        "FedAvg": {"beta .3": [31.89, .44]}, "Local": {"beta .3": 50}}}
    assert list(found.measures) == ["accuracy_best_on_test", "seconds"] and len(found.runs) == 12
    run = found.of("FedMHC, weak", "beta .3")[1]
    assert (run.row, run.column, run.seed, run.rounds) == ("FedMHC, weak", "beta .3", 7, 2)
    assert run.folder == tmp_path / "out" / "fedmhc-weak" / "beta-.3" / "seed-7" and run.outcome.state == "waiting"
    assert run.command == "fedmpi run c.yaml engine=loop 'method={lam: 0.01, name: fedmhc}' seed=7"
    assert [run.seed for run in found.of("Local", "beta 1")] == [5, 7] and found.of("Local", "none") == []


@pytest.mark.parametrize("rounds, state", [(1, "unfinished"), (2, "finished"), (3, "finished")])
def test_a_run_counts_as_finished_when_it_has_the_rounds_that_are_asked_for(job, rounds, state):
    read, planned = job
    made.run(planned[0].folder, lines=[{"round": rounds, "accuracy_mean": .5}], result={"rounds": rounds})
    shown = collect_job_results(read, planned, "c").runs[0]
    assert shown.outcome.state == state and (shown.outcome.result is None) == (state == "unfinished")
    assert shown.outcome.round == rounds


def test_a_seed_with_the_rounds_of_an_earlier_version_of_the_job_is_marked(tmp_path):
    """Both seeds had 12 rounds when the first was finished, and have 2 since; a run that ended early is not a mark."""
    path = jobs.write(tmp_path, tmp_path / "cache", seeds=[0, 1], published={})
    read = jobfile.load_job(path)
    planned = jobfile.expand(read, path, tmp_path / "out", None)
    for run in planned:
        made.run(run.folder, result={"rounds": 12 if (run.row, run.column, run.seed) == ("Local", "beta 1", 0) else
                                     1 if run.row == "FedAvg" else 2, "ended": "stop", "accuracy_best_on_test": .5})
    (table,) = tables.make_tables(collect_job_results(read, planned, "c"))
    assert [place for place, cell in table.cells.items() if cell.longer] == [("Local", "beta 1")]
    assert table.notes()[-1] == f"‡ {tables.LONGER}: Local (beta 1)"
    text, tex = tables.table_to_markdown(table), latex.to_latex(table, "t")
    assert text.count("**50.00 ± 0.00** ‡ |") == 1 and "\n‡ a finished run has more rounds" in text
    assert tex.count(r"$\mathbf{50.00 \pm 0.00}$$^{\ddagger}$ ") == 1 and r"\par $^{\ddagger}$ a finished" in tex


def test_a_run_without_a_column_of_its_own_is_named_by_its_row(tmp_path):
    assert ReportRun("a", "result", 0, tmp_path).name == "a" and ReportRun("a", "b", 0, tmp_path).name == "a, b"


def test_what_is_not_here_is_not_shown(tmp_path):
    """There is no history, a damaged one, or a sound one; settings that cannot be resolved have no federation."""
    nothing = ReportRun("a", "x", 0, made.run(tmp_path / "a", {"method": "nonsense"}))
    assert nothing.history == {} and nothing.federation is None
    (tmp_path / "a" / "history.h5").write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    assert ReportRun("a", "x", 0, tmp_path / "a").history == {}
    folder = made.run(tmp_path / "b", history={"round": [1, 3], "accuracy": [[.5], [.7]]})
    found = ReportRun("a", "x", 0, folder).history
    assert found["round"].tolist() == [1, 3] and found["accuracy"].tolist() == [[.5], [.7]]
    assert ReportRun("a", "x", 0, tmp_path / "none").federation is None


@pytest.mark.parametrize("name, first, second", [
    ("engine", "loop", "vmap"), ("comm", {"timeout": 0}, {"timeout": 90}), ("cuda_graphs", "on", "off"),
    ("device", "cpu", "cuda"), ("threads", 1, 2), ("placement", "a", "b"),
    ("checkpoint", {"every": 1}, {"every": 2}), ("state", {"memory": 1}, {"memory": 2}),
    ("data", {"root": "a"}, {"root": "b"}), ("data", {"cache": "a"}, {"cache": "b"}),
    ("server", {"hosts_clients": True}, {"hosts_clients": False})])
def test_settings_that_change_no_result_are_no_columns(tmp_path, name, first, second):
    folders = [made.run(tmp_path / str(seed), {"seed": seed, "method": {"name": "fedavg"}, name: value})
               for seed, value in ((8, first), (3, second))]
    found = collect_folder_results(folders)
    assert (found.rows, found.columns, found.seeds) == (["FedAvg"], ["result"], [3, 8])
    folders.append(made.run(tmp_path / "2", {"seed": 8, "method": {"name": "fedavg"}, name: second}))
    with pytest.raises(BadInput, match="8 and .*2: runs of the same settings and seed, .*; give one of them"):
        collect_folder_results(folders)


@pytest.mark.parametrize("name, values, columns", [
    ("rounds_more", (1, 2), ["rounds_more=1", "rounds_more=2"]), ("rounds", (2, 5), ["rounds=2", "rounds=5"]),
    ("stop", ({"patience": 2}, {"patience": 3}), ["stop.patience=2", "stop.patience=3"]),
    ("evaluate", ({"every": 1}, {"every": 2}), ["evaluate.every=1", "evaluate.every=2"]),
    ("data", ({"clients": 3}, {"clients": 4}), ["data.clients=3", "data.clients=4"]),
    ("server", ({"reduce": "exact"}, {"aggregation": "median"}),
     ["server.reduce=exact", "server.aggregation=median"])])
def test_other_settings_that_differ_are_columns(tmp_path, name, values, columns):
    folders = [made.run(tmp_path / str(i), {"method": {"name": "fedavg"}, name: value})
               for i, value in enumerate(values)]
    found = collect_folder_results(folders)
    assert found.columns == columns and found.rows == ["FedAvg"] and found.seeds == [0]
    assert [run.column for run in found.runs] == columns


def test_methods_and_what_differs_among_runs_of_one_are_rows(tmp_path):
    """There is one FedProx, so its mu is not shown; an unknown method keeps its name."""
    methods = {"a": {"name": "fedmhc", "M": 2, "lam": 1}, "b": {"name": "fedmhc", "M": 3, "lam": 1},
               "c": {"name": "fedprox", "mu": .1}, "d": {"name": "mine:Method"}}
    folders = [made.run(tmp_path / name, {"method": method, "seed": 1}) for name, method in methods.items()]
    found = collect_folder_results([*folders, folders[0]])
    assert found.rows == ["FedMHC (M=2)", "FedMHC (M=3)", "FedProx", "mine:Method"] and found.columns == ["result"]
    assert found.title == "Results of fedmpi" and found.measures == {"accuracy_best_on_test": {}}
    assert found.command == f"fedmpi report {' '.join(map(str, [*folders, folders[0]]))}"
    command = f"fedmpi run {folders[1]}/config.yaml"
    assert found.runs[1] == ReportRun("FedMHC (M=3)", "result", 1, folders[1], 0, command)


def test_settings_of_a_method_are_compared_once_a_run(tmp_path):
    """Not with those of every other run: a sweep may have thousands. Those that are the same are not named."""
    compared = []

    class Counted(int):
        __hash__ = int.__hash__

        def __ne__(self, other):
            compared.append(self)
            return int.__ne__(self, other)

    several = [{"method": {"name": name, "mu": Counted(i % 40), "lam": Counted(k)}, "seed": 0}
               for k, name in enumerate(["fedprox", "fedah"]) for i in range(40)]
    runs = place_runs([tmp_path / str(i) for i in range(80)], several)
    assert [run.row for run in runs[::40]] == ["FedProx (mu=0)", "FedAH (mu=0)"] and runs[79].row == "FedAH (mu=39)"
    assert len(compared) <= 4 * 80


def test_figures_of_single_runs_are_of_the_first_finished_seed_of_each_cell(tmp_path):
    seeds = {("A", "one"): (1, 2), ("A", "two"): (2,), ("B", "one"): (0, 2)}
    finished = {("A", "one", 2), ("A", "one", 0), ("A", "two", 2)}
    runs = [ReportRun(row, column, seed, made.run(tmp_path / f"{row}{column}{seed}", result={} if (
        row, column, seed) not in finished else {"seconds": 1.})) for (row, column), of in seeds.items() for seed in of]
    results = Results("t", "c", ["A", "B"], ["one", "two"], [2, 1, 0], runs)
    assert [(run.row, run.column, run.seed) for run in results.list_examples()] == [
        ("A", "one", 2), ("B", "one", 2), ("A", "two", 2)]
    results.seeds, results.runs = [0, 1, 2], [ReportRun("A", "one", seed, tmp_path / f"Aone{seed}") for seed in (2, 1)]
    assert [run.seed for run in results.list_examples()] == [2]
    results.runs = [ReportRun("B", "one", seed, tmp_path / f"Bone{seed}") for seed in (2, 0)]
    assert [run.seed for run in results.list_examples()] == [0]


def test_results_are_read_once(tmp_path):
    run = ReportRun("a", "x", 0, made.run(tmp_path / "a", history={"round": [1], "accuracy": [[.5]]}))
    assert run.outcome is run.outcome and run.history is run.history
    assert np.array_equal(run.history["round"], [1])


def test_a_report_holds_no_classes_beside_numbers(tmp_path):
    """Errors were shown as percentages of the accuracies' table."""
    classes, numbers, begun = tmp_path / "classes", tmp_path / "numbers", tmp_path / "begun"
    made.run(classes, lines=[{"round": 1, "accuracy_mean": .5}], result={"rounds": 1})
    made.run(numbers, {"data": {"task": "regression"}}, lines=[{"round": 1, "mse_mean": 2.}], result={"rounds": 1})
    made.run(begun, {"seed": 7})
    with pytest.raises(BadInput) as caught:
        report_paths([str(classes), str(numbers)], None, None, str(tmp_path / "report"), False)
    assert str(caught.value) == (f"{classes} has learned classes and {numbers} numbers, so no table can hold both; "
                                 "report them apart, as folders of runs")
    assert not (tmp_path / "report").exists()
    assert "report" in report_paths([str(classes), str(begun)], None, None, str(tmp_path / "report"), False)


def test_a_folder_of_runs_and_what_a_sweep_printed_are_understood(tmp_path, monkeypatch):
    """`seed-*` of a shell names seed-0 and seed-0.txt."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        made.run(tmp_path / "runs" / f"seed-{seed}", settings={"seed": seed}, result={"accuracy_mean": .5, "rounds": 1})
        (tmp_path / "runs" / f"seed-{seed}.txt").write_text("job sweep: start 1")
    found = list_given_runs(["runs/seed-0", "runs/seed-0.txt", "runs/seed-1", "runs/seed-1.txt"])
    assert found == list_given_runs(["runs"]) == ([Path("runs/seed-0"), Path("runs/seed-1")], [])
    with pytest.raises(BadInput, match="^runs/seed-0.txt: there is no run in this folder or below it"):
        list_given_runs(["runs/seed-0.txt"])


def test_a_start_that_left_no_settings_is_named_and_left_out(tmp_path, monkeypatch):
    """Such as one that was refused before it wrote them; unless it is given itself, or is all that there is."""
    monkeypatch.chdir(tmp_path)
    made.run(tmp_path / "runs/a", settings={"seed": 0}, result={"accuracy_mean": .5, "rounds": 1})
    refused = [Path(f"runs/b{i}") for i in range(7)]
    for folder in refused:
        (tmp_path / folder / "checkpoints").mkdir(parents=True)
        (tmp_path / folder / "log.txt").write_text("refused")
    assert list_given_runs(["runs"]) == ([Path("runs/a")], refused)
    assert list_given_runs(["runs", "runs/b2"])[0] == [Path("runs/a"), Path("runs/b2")]
    said = report_paths(["runs"], None, None, "report", False).splitlines()
    named = "runs/b0, runs/b1, runs/b2, runs/b3, runs/b4"
    assert said[1:] == [f"left out: {named}, and of 2 more, whose settings cannot be read; `fedmpi status "
                        f"{named.replace(',', '')}` says what is known of them"]
    for given in ("runs/b2", "runs/b0"):
        with pytest.raises(BadInput, match=f"^{given} is not the folder of a run"):
            report_paths([given], None, None, "report", False)


def test_an_attempt_that_is_not_finished_is_left_out_for_one_that_is(tmp_path, monkeypatch):
    """Such as the first start of a command without --out, which was killed and given again."""
    monkeypatch.chdir(tmp_path)
    done = {"accuracy_mean": .5, "rounds": 1}
    for name, seed, result in (("q-001", 0, None), ("q-002", 0, done), ("q-003", 1, done), ("q-004", 0, None),
                               ("q-005", 2, None)):
        made.run(Path("runs") / name, settings={"seed": seed}, result=result)
    found = collect_folder_results(list_given_runs(["runs"])[0])
    assert [run.folder.name for run in found.runs] == ["q-002", "q-003", "q-005"] and found.seeds == [0, 1, 2]
    assert found.command == "fedmpi report runs/q-002 runs/q-003 runs/q-005"
    said = report_paths(["runs"], None, None, "report", False).splitlines()
    assert said[1].endswith("`fedmpi status runs/q-002 runs/q-003 runs/q-005` says how far each is")
    assert said[2] == ("left out: runs/q-001 (for runs/q-002), runs/q-004 (for runs/q-002); not finished, while the "
                       "runs in brackets, of the same settings and seed, are")


def test_all_runs_of_which_it_is_unclear_which_to_show_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(7):
        for number in range(8 if seed == 1 else 2):
            made.run(Path("runs") / f"{seed}-{number}", settings={"seed": seed},
                     result={"accuracy_mean": .5, "rounds": 1} if seed == 0 else None)
    with pytest.raises(BadInput) as caught:
        report_paths(["runs"], None, None, "report", False)
    many = " and ".join(f"runs/1-{number}" for number in range(5))
    assert str(caught.value) == (
        f"runs/0-0 and runs/0-1; {many} and 3 more; runs/2-0 and runs/2-1; runs/3-0 and runs/3-1; runs/4-0 and runs/4-1"
        "; and 2 more such groups: runs of the same settings and seed, of which none or several are finished; give one "
        "of each group")


def test_a_column_names_only_settings_that_its_runs_have(tmp_path):
    partitions = {"name": "dirichlet", "beta": .5}, {"name": "n_class", "n": 3}
    for number, partition in enumerate(partitions):
        made.run(tmp_path / str(number), settings={"method": {"name": "local"}, "data": {"partition": partition}})
    assert collect_folder_results([tmp_path / "0", tmp_path / "1"]).columns == [
        "data.partition.name=dirichlet, data.partition.beta=0.5", "data.partition.name=n_class, data.partition.n=3"]


def test_runs_on_unlike_samples_are_named(tmp_path):
    """Their settings are the same, so a file was replaced in between; a column of other settings has other samples."""
    who = {"availability": {"file": "away.csv"}}
    runs = [ReportRun(row, column, seed, made.run(tmp_path / f"{row}{column}{seed}", settings, result={
        "federation": samples * 64, "files": {"availability.file": file * 64}}))
        for row, column, seed, samples, file, settings in (
            ("A", "one", 0, "a", "f", who), ("B", "one", 0, "b", "f", who), ("C", "one", 0, "a", "e", who),
            ("A", "one", 1, "c", "d", who), ("B", "two", 0, "d", "c", {"data": {"clients": 5}}),
            ("D", "one", 0, "e", "b", {"data": {"clients": 9}, "availability": {"file": "other.csv"}}))]
    a, b, e, f = (letter * 12 for letter in "abef")
    assert list_sample_differences(runs) == [
        f"one, seed 0: finished runs differ in samples, and cannot be compared: {a} (A; C) and {b} (B)",
        f"one, seed 0: finished runs differ in availability.file, and cannot be compared: {f} (A; B) and {e} (C)"]
    assert set(list_sample_differences(runs)) <= set(write.list_remarks(Results("t", "c", [], ["one"], [0], runs)))
