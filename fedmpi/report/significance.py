"""Whether the rows of a report differ by more than chance: paired tests over clients and over seeds, and mean ranks.

Every test is Wilcoxon's signed-rank test of a row against a reference, which is the job's `baseline` or else the best
row of the column, on accuracies after the last round, with Holm's correction over the rows. The critical difference of
mean ranks is Nemenyi's (Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006)."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedmpi.json_values import flatten_settings
from fedmpi.own_code.fingerprint import join_hashes
from fedmpi.report.escapes import escape_markdown
from fedmpi.report.results import ReportRun, Results
from fedmpi.task import CLASSIFICATION, Task, find_task

# With fewer pairs no difference can reach p = .05 (two-sided).
MIN_PAIRS = 6
# With more pairs p is computed by the normal approximation, which is good for so many.
MAX_EXACT_PAIRS = 200
# Digits after the point of differences of accuracies; errors are divided by their typical size.
DIFFERENCE_DIGITS = 12
# level of the critical difference
LEVEL = .05
TEST_COLUMNS = ("points", "better / worse clients", "p over clients", "p over seeds")
TESTS_EXPLAINED = ("Wilcoxon's signed-rank tests against the row named at the head, on accuracies (or errors) after "
                   "the last round, Holm-corrected over the rows. Clients of a run share data and models, so p over "
                   "clients is a hint; p over seeds counts a run once, and with the number of rows here it can fall "
                   "below .05 from {seeds} seeds on.")
BEST_ROW_EXPLAINED = ("The row at the head is the best of its column. It was chosen by these numbers, so p is too "
                      "small here; a job's `baseline`, if it has finished runs in the column, avoids that.")


class RowTest(NamedTuple):
    """How a row of a column compares with the reference."""
    row: str
    # mean accuracy of the row less that of the reference, over common clients and seeds, in percent points; if targets
    # are learned, the mean error of the reference less that of the row
    difference: float
    # clients (of all seeds) that the row serves better than the reference does, and worse
    better: int
    worse: int
    # corrected p over clients and over seeds; None: too few pairs
    p_clients: float | None
    p_seeds: float | None


class Comparison(NamedTuple):
    """The tests of a column."""
    column: str
    # the row that all others are compared with
    reference: str
    tests: list[RowTest]
    task: Task = CLASSIFICATION
    # whether the job names the reference as its baseline; else it is the best row
    is_baseline: bool = True

    @property
    def heads(self) -> tuple[str, ...]:
        """Return what the numbers of a test are."""
        return TEST_COLUMNS if self.task.larger_is_better else ("less error", *TEST_COLUMNS[1:])

    @property
    def texts(self) -> list[list[str]]:
        """Return the tests as texts: the row, then its numbers."""
        return [format_test(test, self.task) for test in self.tests]


class MeanRanks(NamedTuple):
    """Mean ranks of rows over columns; the ranks of a column are means over its seeds. 1 is the best."""
    rows: list[str]
    means: list[float]
    # in how many columns the rows were ranked
    columns: int

    @property
    def critical_difference(self) -> float:
        """Two rows differ at LEVEL if their mean ranks are further apart than this.

        Seeds of a column are repetitions and no further data sets, so a column counts once."""
        from scipy.stats import studentized_range
        k = len(self.rows)
        return float(studentized_range.ppf(1 - LEVEL, k, np.inf)) / math.sqrt(2) * math.sqrt(
            k * (k + 1) / (6 * self.columns))

    @property
    def can_differ(self) -> bool:
        """Whether the first and the last of so many rows could differ at LEVEL: with few columns no rows can."""
        return self.critical_difference < len(self.rows) - 1


def compare_column(results: Results, column: str) -> Comparison | None:
    """Return the tests of a column; None if fewer than two rows have finished runs."""
    clients = {row: accuracies for row in results.rows if (accuracies := collect_accuracies_by_seed(results, row,
                                                                                                    column))}
    if len(clients) < 2:
        return None
    reference = results.baseline if results.baseline in clients else find_best_row(clients)
    runs = {row: {run.seed: run for run in results.of(row, column)} for row in clients}
    found = []
    for row in clients:
        if row != reference:
            same = {seed: values for seed, values in clients[row].items() if seed in runs[reference]
                    and has_same_samples(runs[row][seed], runs[reference][seed])}
            found.append(compare_rows(row, same, clients[reference], results.task))
    over_clients = correct_by_holm([test.p_clients for test in found])
    over_seeds = correct_by_holm([test.p_seeds for test in found])
    return Comparison(column, reference, [test._replace(p_clients=a, p_seeds=b)
                                          for test, a, b in zip(found, over_clients, over_seeds, strict=True)],
                      results.task, reference == results.baseline)


def has_same_samples(run: ReportRun, other: ReportRun) -> bool:
    """Say whether two runs of one seed were evaluated on the same samples of each client, so that clients are pairs: by
    `evaluate.on` and the hash of their federation, or by their settings of the data where a run of an older version has
    no hash."""
    if run.evaluated_part != other.evaluated_part:
        return False
    hashes = [(one.outcome.result or {}).get("federation") for one in (run, other)]
    if all(hashes):
        return bool(hashes[0] == hashes[1])
    return all(run.data_settings[name] == other.data_settings[name]
               for name in run.data_settings.keys() & other.data_settings.keys())


def list_sample_differences(runs: Iterable[ReportRun]) -> list[str]:
    """Return a line for each column and seed of which finished runs had other samples, or another file of who takes
    part, although their settings of the data are the same: a file was replaced between them."""
    found: dict[tuple[str, int, str, str], dict[str, list[str]]] = {}
    for run in runs:
        result = run.outcome.result or {}
        files, settings = result.get("files"), flatten_settings(run.settings or {})
        named = {"samples": result.get("federation"), **(files if isinstance(files, dict) else {})}
        for what, value in named.items():
            if isinstance(value, str):
                alike = sorted(run.data_settings.items()) if what == "samples" else settings.get(what)
                key = (run.column, run.seed, what, str(alike))
                found.setdefault(key, {}).setdefault(value, []).append(run.row)
    return [f"{column}, seed {seed}: finished runs differ in {what}, and cannot be compared: {join_hashes(by_hash)}"
            for (column, seed, what, _), by_hash in found.items() if len(by_hash) > 1]


def find_best_row(clients: dict[str, dict[int, np.ndarray]]) -> str:
    """Return the row with the largest mean over its seeds, or over those of all rows if there are such seeds."""
    common = set.intersection(*(set(by_seed) for by_seed in clients.values()))
    means = {row: float(np.mean([np.nanmean(values) for seed, values in by_seed.items()
                                 if seed in common or not common])) for row, by_seed in clients.items()}
    return max(means, key=means.__getitem__)


def collect_accuracies_by_seed(results: Results, row: str, column: str) -> dict[int, np.ndarray]:
    """Return the clients' accuracies, or their negative errors, (clients,) after the last round of every finished run,
    by seed; nan for attackers and clients without test samples. Runs in which all are nan are left out."""
    found = {}
    for run in results.of(row, column):
        if (last := run.last_measures) is not None and not np.isnan(last).all():
            found[run.seed] = last if find_task(run.history).larger_is_better else -last
    return found


def compare_rows(row: str, mine: dict[int, np.ndarray], others: dict[int, np.ndarray],
                 task: Task = CLASSIFICATION) -> RowTest:
    """Return the test of a row against the reference, without correction, on the seeds and clients of both.

    Args:
        mine: accuracies, or negative errors, of the row's clients, by seed.
        others: those of the reference.
        task: what they have learned: differences of accuracies are returned in percent points."""
    scale = 100 if task.larger_is_better else 1
    size = find_typical_size(task, [*mine.values(), *others.values()])
    pairs = [mine[seed] - others[seed] for seed in sorted(mine.keys() & others.keys())
             if mine[seed].shape == others[seed].shape]
    pairs = [differences[~np.isnan(differences)] for differences in pairs]
    pairs = [round_noise(differences, size) for differences in pairs if len(differences)]
    clients = np.concatenate(pairs) if pairs else np.empty(0)
    seeds = round_noise(np.array([differences.mean() for differences in pairs]), size)
    return RowTest(row, scale * float(seeds.mean()) if len(seeds) else math.nan, int((clients > 0).sum()),
                   int((clients < 0).sum()), compute_wilcoxon_p(clients), compute_wilcoxon_p(seeds))


def find_typical_size(task: Task, several: list[np.ndarray]) -> float:
    """Return 1 for accuracies, and the median size of errors that are neither 0 nor infinite (1 if there are none)."""
    if task.larger_is_better:
        return 1.
    sizes = np.abs(np.concatenate(several))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(np.median(sizes)) if len(sizes) else 1.


def round_noise(numbers: np.ndarray, size: float) -> np.ndarray:
    """Return means or differences of numbers of this size without the noise of floating-point arithmetic: .9 - .8 and
    .8 - .7 are not equal, and what is not equal has different ranks."""
    return np.round(numbers / size, DIFFERENCE_DIGITS) * size


def compute_wilcoxon_p(differences: np.ndarray) -> float | None:
    """Return the two-sided p of Wilcoxon's test that differences are symmetric about 0; None for too few of them.

    Zeros take part in the ranking (Pratt), and equal differences share their mean rank. Up to MAX_EXACT_PAIRS others p
    is exact: the share of all choices of signs whose sum of ranks is as far from its mean."""
    if len(differences) < MIN_PAIRS:
        return None
    from scipy.stats import rankdata, wilcoxon
    if np.count_nonzero(differences) > MAX_EXACT_PAIRS:
        return float(wilcoxon(differences, zero_method="pratt").pvalue)
    # twice the ranks, which are whole numbers
    ranks = np.rint(2 * rankdata(np.abs(differences))).astype(int)
    signed = ranks[differences != 0]
    total = int(signed.sum())
    chances = np.zeros(total + 1)
    chances[0] = 1
    for rank in signed.tolist():
        chances[rank:] = (chances[rank:] + chances[:total + 1 - rank]) / 2
        chances[:rank] /= 2
    distance = abs(2 * int(ranks[differences > 0].sum()) - total)
    return min(1., float(chances[np.abs(2 * np.arange(total + 1) - total) >= distance].sum()))


def correct_by_holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values with Holm's correction for their number; None stays and does not count."""
    order = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.
    for place, (p, i) in enumerate(order):
        largest = max(largest, min(1., p * (len(order) - place)))
        corrected[i] = largest
    return corrected


def rank_rows(results: Results) -> MeanRanks | None:
    """Return the mean ranks of the rows by accuracy after the last round: within each column over the seeds in which
    every row is finished, then over columns, of which each counts once; None for fewer than three rows or two such
    pairs of a column and a seed. Variants of a row are left out, so that a method counts once, and so are rows that are
    finished everywhere and have no accuracy anywhere."""
    from scipy.stats import rankdata
    found = {row: {column: collect_accuracies_by_seed(results, row, column) for column in results.columns}
             for row in results.rows}
    rows = [row for row in results.rows if row not in results.variants
            and (any(found[row].values()) or not all(run.outcome.result for run in results.runs if run.row == row))]
    places = [(column, seed) for column in results.columns for seed in results.seeds
              if all(seed in found[row][column] for row in rows)]
    blocks = [[-np.nanmean(found[row][column][seed]) for row in rows] for column, seed in places]
    if len(rows) < 3 or len(blocks) < 2:
        return None
    values = np.array(blocks)
    values = round_noise(values, find_typical_size(results.task, [values.ravel()]))
    ranks: dict[str, list[np.ndarray]] = {}
    for (column, _), of_block in zip(places, rankdata(values, axis=1), strict=True):
        ranks.setdefault(column, []).append(of_block)
    return MeanRanks(rows, np.mean([np.mean(of_column, 0) for of_column in ranks.values()], 0).tolist(), len(ranks))


def tests_to_markdown(found: list[Comparison]) -> str:
    """Return the tests of all columns as Markdown; "" if there are none."""
    lines = []
    for comparison in found:
        heads = [escape_markdown(f"{comparison.column}: against {comparison.reference}"), *comparison.heads]
        lines += [f"| {' | '.join(heads)} |", "|---|" + "--:|" * len(comparison.heads)]
        for row, *numbers in comparison.texts:
            lines.append(f"| {' | '.join([escape_markdown(row), *numbers])} |")
        lines.append("")
    return "\n".join([*lines, explain_tests(found), ""]) if lines else ""


def explain_tests(found: list[Comparison]) -> str:
    """Return what is to be known of the tests: how they are made, and from how many seeds on p over seeds can be small
    with as many rows as the largest of these columns has."""
    rows = max((len(comparison.tests) for comparison in found), default=1)
    seeds = max(MIN_PAIRS, math.floor(math.log2(2 * rows / LEVEL)) + 1)
    return " ".join([TESTS_EXPLAINED.format(seeds=seeds),
                     *[BEST_ROW_EXPLAINED] * any(not comparison.is_baseline for comparison in found)])


def format_test(test: RowTest, task: Task = CLASSIFICATION) -> list[str]:
    """Return a test as the texts of a table's row; "-" where the row and the reference have no seed in common."""
    if math.isnan(test.difference):
        return [test.row, *["-"] * len(TEST_COLUMNS)]
    difference = f"{test.difference:+.2f}" if task.larger_is_better else f"{test.difference:+.4g}"
    return [test.row, difference, f"{test.better} / {test.worse}", format_p(test.p_clients),
            format_p(test.p_seeds)]


def format_p(p: float | None) -> str:
    """Return a p-value as text."""
    return "-" if p is None else "< .001" if p < .001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"
