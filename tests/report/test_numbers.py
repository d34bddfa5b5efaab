"""The numbers in figures of runs that were written by hand, all worked out on paper and none read from pixels."""
from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from numpy.testing import assert_allclose

from fedmpi.report import figures
from fedmpi.report.figures import accuracy, clients, clusters, embeddings, style, work
from fedmpi.report.results import ReportRun, Results
from tests.report import made


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made.results(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def alpha(results):
    """The run of Alpha in column one with the first seed."""
    return results.of("Alpha", "one")[0]


def points(line: Line2D) -> list[list[float]]:
    return [list(map(float, values)) for values in (line.get_xdata(), line.get_ydata())]


def heights(area, x: float) -> list[float]:
    """Return the heights of an area's corners at x, ascending."""
    corners = area.get_paths()[0].vertices
    return sorted(set(corners[corners[:, 0] == x][:, 1].tolist()))


def test_only_what_there_are_data_for_is_drawn_under_names_of_their_own(results, alpha):
    drawn = {picture.name: picture for picture in figures.draw_figures(results)}
    assert list(drawn) == ["accuracy-one", "clients-one", "bytes-one", "seconds-one", "lam-one",
                           "agreement-one", "iterations-one", "distance-one", "phases-one", "clusters-alpha-one",
                           "assignments-alpha-one"]
    assert drawn["accuracy-one"].caption.startswith("one: Test accuracy, mean over clients; band")
    assert drawn["clusters-alpha-one"].caption == "Alpha, one: Clients in each cluster by round"
    alone = Results("t", "c", ["Alpha"], ["one"], [3], [alpha])
    assert next(figures.draw_figures(alone)).caption.startswith("Test accuracy, mean over clients")


def test_captions_and_axes_say_what_was_measured_on_which_samples(tmp_path):
    lines = [{"round": 1, "mse_mean": .5, "seconds": 1.}, {"round": 2, "mse_mean": .25, "seconds": 2.}]
    found = [ReportRun("A", "one", seed, made.run(tmp_path / str(seed), {"evaluate": {"on": on}}, lines))
             for seed, on in enumerate(["validation", "validation", "test"])]
    def picture(runs):
        return next(figures.draw_figures(Results("t", "c", ["A"], ["one"], [0, 1, 2], runs)))
    assert picture(found[:2]).caption.startswith("Validation squared error, mean over clients; band")
    assert picture(found[:2]).figure.axes[0].get_ylabel() == "validation squared error, mean over clients"
    assert picture(found).caption.startswith("Test or validation squared error, mean")
    assert ReportRun("A", "one", 0, tmp_path / "none").evaluated_part == "test"
    ranks, = [entry for entry in figures.OF_RESULTS if entry.name == "ranks"]
    assert figures.fill_caption(ranks.caption, Results("t", "c", [], [], [], found)).startswith(
        "Mean rank by squared error after")


def test_curves_and_bands_are_in_percent_over_the_rounds_that_all_seeds_have(results):
    """Alpha has 20 and 30 after round 2, 40 and 50 after round 4; the deviation of two is their distance / sqrt(2)."""
    axes, = accuracy.draw_accuracy_by_round(results, "one").axes
    first, gamma = axes.get_lines()
    assert points(first) == [[2, 4], pytest.approx([25, 45])] and first.get_label() == "Alpha"
    assert points(gamma) == [[4], [25]] and gamma.get_label() == "Gamma"
    # This is the colour of the third row, though Beta has nothing to show.
    assert gamma.get_color() == "#009E73"
    band, _ = axes.collections
    for x, mean in ((2, 25), (4, 45)):
        assert heights(band, x) == pytest.approx([mean - 50 ** .5, mean + 50 ** .5])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy, mean over clients (%)")
    assert accuracy.draw_accuracy_by_round(results, "two") is None


def make_seeds(folder, finished):
    """Return the results of two seeds with four rounds each, of which seed 1 failed after one of them.

    Args:
        finished: whether seed 0 has a result."""
    lines = [line | {"round": t, "ari": .5} for t, line in enumerate(made.LINES[3][:1] * 4, 1)]
    history = {"round": [4], "accuracy": [[.5, .6]]}
    runs = [ReportRun("a", "x", 0, made.run(folder / "0", lines=lines, history=history, result={"rounds": 4} if finished
                                            else None), 4),
            ReportRun("a", "x", 1, made.run(folder / "1", lines=lines[:1], history={"round": [1],
                                                                                    "accuracy": [[.1, .2]]}), 4)]
    return Results("t", "c", ["a"], ["x"], [0, 1], runs)


@pytest.mark.parametrize("finished, rounds", [(True, [1, 2, 3, 4]), (False, [1])])
def test_a_seed_that_failed_early_does_not_cut_the_curves_of_finished_ones(tmp_path, finished, rounds):
    results = make_seeds(tmp_path, finished)
    for draw in (accuracy.draw_accuracy_by_round, accuracy.draw_accuracy_by_seconds, clusters.draw_agreement,
                 clients.draw_lam):
        line = draw(results, "x").axes[0].get_lines()[0]
        # The curves of lam are those of the first run's rounds.
        assert len(line.get_xdata()) == (4 if draw is clients.draw_lam else len(rounds))
        assert np.isfinite(line.get_ydata()).sum() == len(rounds)


@pytest.mark.parametrize("finished, values", [(True, [.5, .6]), (False, [])])
def test_clients_of_runs_that_are_not_at_their_end_are_in_no_box(tmp_path, finished, values):
    results = make_seeds(tmp_path, finished)
    assert accuracy.collect_last_accuracies(results.runs).tolist() == values
    assert (accuracy.draw_accuracy_by_client(results, "x") is not None) == finished


def test_accuracy_by_what_it_cost(results):
    """Seed 3 has moved .5 x 2 + .5 x 3 = 2.5 MiB until round 2, and twice .25 x 4 more until round 4."""
    axes, = accuracy.draw_accuracy_by_bytes(results, "one").axes
    first, gamma = axes.get_lines()
    assert points(first) == [pytest.approx([(2.5 + 4) / 2, (4.5 + 6) / 2]), pytest.approx([25, 45])]
    assert gamma.get_label() == "Gamma (moves nothing)" and points(gamma)[1] == [25, 25]
    assert axes.get_xlabel() == "received and sent by all clients (MiB)"
    axes, = accuracy.draw_accuracy_by_seconds(results, "one").axes
    assert points(axes.get_lines()[0]) == [pytest.approx([2.5, 4.5]), pytest.approx([25, 45])]
    assert axes.get_xlabel() == "time in rounds (s)"
    assert_allclose(accuracy.sum_moved_mib(made.LINES[3]), [1, 2.5, 4.5])
    assert_allclose(accuracy.sum_moved_mib(made.LINES[4]), [4, 6])
    # A warm-up has a line of its own, and LCFed's matrix goes to each client once.
    lines = [{"round": t, "mib_per_client_round": 1., "participants": 2, "bytes_once": 2 ** 20,
              "cluster_sizes_all": sizes} for t, sizes in ((0, [2, 0]), (2, [2, 1]), (3, [1, 2]))]
    assert_allclose(accuracy.sum_moved_mib(lines), [2 + 2, 2 + 4 + 3, 2 + 4 + 2 + 3])


def test_boxes_are_of_all_seeds_last_round_in_percent(results):
    """10 20 30 40 50 60 90 have quartiles 25 and 55; 5 and 95 % are at 13 and 81, the whiskers at the next within."""
    axes, = accuracy.draw_accuracy_by_client(results, "one").axes
    box, = axes.patches
    assert_allclose(sorted(set(box.get_path().vertices[:, 0].round(9))), [25, 55])
    low, high, cap, other, median, mean, outside = axes.get_lines()
    assert_allclose([line.get_xdata() for line in (low, high, median)], [[25, 20], [55, 60], [40, 40]])
    assert_allclose(sorted(outside.get_xdata()), [10, 90])
    assert_allclose(mean.get_xdata(), [300 / 7])
    assert_allclose([*cap.get_xdata(), *other.get_xdata()], [20, 20, 60, 60])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Alpha"]
    assert axes.get_xlabel() == "test accuracy of a client (%)" and axes.yaxis_inverted()
    assert_allclose(accuracy.collect_last_accuracies(results.of("Alpha", "one")), [.1, .2, .3, .4, .5, .6, .9])
    assert accuracy.collect_last_accuracies(results.of("Gamma", "one")).size == 0
    assert accuracy.draw_accuracy_by_client(results, "two") is None


@pytest.mark.parametrize(
    "draw, label, values",
    [
        (clusters.draw_agreement, "adjusted Rand index", [0.4, 0.65]),
        (clusters.draw_iterations, "iterations of k-means", [3, 4.5]),
        (clusters.draw_distance, "mean distance from the cluster's mean", [1, 0.8]),
    ],
)
def test_clusterings_are_shown_by_the_mean_over_seeds(results, draw, label, values):
    """Not by the best seed: .3 and .5 after round 2, .4 and .9 after round 4."""
    axes, = draw(results, "one").axes
    line, = axes.get_lines()
    assert points(line) == [[2, 4], pytest.approx(values)] and line.get_label() == "Alpha"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", label) and draw(results, "two") is None


def test_a_round_without_a_number_is_left_out(tmp_path):
    lines = [{"round": t, "ari": value} for t, value in ((1, .5), (2, None), (3, .7))]
    runs = [ReportRun("a", "x", 0, made.run(tmp_path / "a", lines=lines)),
            ReportRun("a", "x", 1, made.run(tmp_path / "b", lines=[{"round": 1, "ari": None}]))]
    axes, = clusters.draw_agreement(Results("t", "c", ["a"], ["x"], [0, 1], runs), "x").axes
    assert points(axes.get_lines()[0]) == [[1, 3], [.5, .7]]


def test_lam_of_all_clients_and_of_groups(results):
    """Seed 4 did not evaluate the first round, and has no value of a group after the last."""
    axes, = clients.draw_lam(results, "one").axes
    everybody, few_shot = axes.get_lines()
    assert [line.get_label() for line in (everybody, few_shot)] == ["Alpha: all clients", "Alpha: few shot"]
    assert_allclose(points(everybody), [[1, 2, 4], [np.nan, .3, .4]])
    assert_allclose(points(few_shot), [[1, 2, 4], [np.nan, 3, np.nan]])
    assert axes.get_yscale() == "log" and everybody.get_color() != few_shot.get_color()
    assert clients.draw_lam(results, "two") is None and clients.draw_label_distribution(results, "one") is None


def test_clusters_are_stacked(alpha, results):
    """Clusters have 1 and 2, then 2 and 2, then 1, 1 and 2 clients; they change midway between two evaluated rounds."""
    axes, = clusters.draw_cluster_sizes(alpha).axes
    assert [area.get_label() for area in axes.collections] == ["0", "1", "2"]
    for i, area in enumerate(axes.collections):
        first, second, third = ([edges[i], edges[i + 1]] for edges in ([0, 1, 3, 3], [0, 2, 4, 4], [0, 1, 2, 4]))
        for x, edges in ((1, first), (1.5, first + second), (3, second + third), (4, third)):
            assert heights(area, x) == sorted(set(edges))
    assert axes.get_title() == "Alpha, one" and clusters.draw_cluster_sizes(results.of("Gamma", "one")[0]) is None


def test_assignments_are_sorted_by_the_last_cluster(alpha, results):
    """The last clusters [2, 1, 2, 0] put clients 1, 0, 2, 3 into the order 3, 1, 0, 2."""
    axes, bar = clusters.draw_assignments(alpha).axes
    mesh, = axes.collections
    assert mesh.get_array().tolist() == [[0, 0, 0], [1, 1, 1], [None, 0, 2], [1, 1, 2]]
    assert mesh.get_coordinates()[0, :, 0].tolist() == [.5, 1.5, 2.5, 4.5]
    assert [to_hex(colour).upper() for colour in mesh.cmap.colors] == ["#0072B2", "#F0E442", "#D55E00"]
    assert [mesh.norm(cluster) for cluster in range(3)] == [0, 1, 2] and bar.get_yticks().tolist() == [0, 1, 2]
    assert axes.get_ylabel() == "clients, sorted by cluster at the end"
    # No cluster is known.
    assert clusters.draw_assignments(results.of("Alpha", "one")[1]) is None


def test_phases_add_up_to_the_round(results, alpha):
    """Seed 3 takes 1 s a round, of which .4 train and .2 (.8 / 3 in three of four rounds) evaluate; seed 4 takes 1.25,
    .6 and .2 (.4 in two of four). The means are .5, .2 and .425 s, with 30 % idle."""
    assert work.average_phases(alpha) == pytest.approx((.4, .2, .4, .2))
    assert work.average_phases(results.of("Alpha", "one")[1]) == pytest.approx((.6, .2, .45, .4))
    figure = work.draw_phases(results, "one")
    seconds, idle = figure.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in seconds.patches]
    assert_allclose(bars, [(0, .5), (.5, .2), (.7, .425)])
    assert [bar.get_width() for bar in idle.patches] == pytest.approx([30])
    assert idle.get_xlim() == (0, 100) and idle.get_xlabel() == "idle share (%)"
    assert seconds.get_xlabel() == "seconds of a round"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "training", "evaluation", "rest: server, communication"]
    assert [tick.get_text() for tick in seconds.get_yticklabels()] == ["Alpha"]
    assert work.average_phases(results.of("Gamma", "one")[0]) is None and work.draw_phases(results, "two") is None


def test_one_worker_has_no_idle_share(tmp_path):
    line = {"round": 2, "seconds": 1., "seconds_train": .4, "seconds_judge": .4, "idle_share": 0.}
    run = ReportRun("a", "x", 0, made.run(tmp_path / "a", lines=[line]))
    # The round before the first one is none of them.
    before = {"round": 0, "seconds": 6., "seconds_train": 5., "seconds_judge": 1., "idle_share": 0.}
    warmed = ReportRun("a", "x", 0, made.run(tmp_path / "w", lines=[before, line | {"seconds": 8.}]))
    assert work.average_phases(warmed) == pytest.approx((.4, .2, .4, 0))
    # A negative rest counts as 0.
    assert work.average_phases(run) == pytest.approx((.4, .2, 0, 0))
    assert len(work.draw_phases(Results("t", "c", ["a"], ["x"], [0], [run]), "x").axes) == 1
    # Nor is so short a bar drawn.
    short = ReportRun("a", "x", 0, made.run(tmp_path / "b", lines=[line | {"idle_share": .015}]))
    assert len(work.draw_phases(Results("t", "c", ["a"], ["x"], [0], [short]), "x").axes) == 1


def embedded(folder, finite):
    """Write a run of six evaluated rounds; `finite` has the clients with an embedding in each."""
    rows = np.full((6, 5, 3), np.nan, np.float32)
    for at, count in enumerate(finite):
        rows[at, :count] = np.random.default_rng(at).random((count, 3))
    history = {"round": [1, 2, 3, 4, 5, 9], "accuracy": np.zeros((6, 5)), "embedding": rows,
               "cluster": np.tile([1, 0, 1, -1, 0], (6, 1))}
    return ReportRun("a", "result", 0, made.run(folder, history=history))


def test_embeddings_at_three_moments_that_have_some(tmp_path):
    """Of rounds 1, 3, 4, 5 and 9 the first, middle and last are shown; in round 2 only two clients are known."""
    figure = embeddings.draw_tsne(embedded(tmp_path / "a", (5, 2, 3, 4, 3, 5)))
    assert [axes.get_title() for axes in figure.axes] == ["cluster, round 1", "cluster, round 4", "cluster, round 9"]
    sizes = [[len(c.get_offsets()) for c in axes.collections if isinstance(c, PathCollection)] for axes in figure.axes]
    # Clients without a cluster, in cluster 0 and in cluster 1; in round 4 client 4 is not known.
    assert sizes == [[1, 2, 2], [1, 1, 2], [1, 2, 2]]
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == ["none", "0", "1"] and figure.get_suptitle() == "a"
    faces = [to_hex(c.get_facecolor()[0]) for c in figure.axes[0].collections]
    assert faces == ["#ffffff", style.AREAS[0].lower(), style.AREAS[1].lower()]
    assert embeddings.draw_tsne(embedded(tmp_path / "b", (2, 2, 0, 1, 2, 2))) is None
    assert embeddings.draw_tsne(ReportRun("a", "x", 0, tmp_path)) is None
    few = embeddings.draw_tsne(embedded(tmp_path / "c", (0, 0, 3, 0, 0, 0)))
    assert [axes.get_title() for axes in few.axes] == ["cluster, round 3"]


def test_markers_are_few_and_looks_repeat_late():
    assert [style.choose_marker_spacing(n) for n in (1, 8, 15, 16, 80)] == [1, 1, 1, 2, 10]
    assert style.style_line(0) == {"color": "#0072B2", "linestyle": "-", "marker": "o", "markersize": 4}
    assert style.style_line(8)["color"] == "#0072B2" and style.style_line(8) != style.style_line(0)
    assert style.style_area(1)["hatch"] == "//" and len({tuple(style.style_area(i).values()) for i in range(8)}) == 8


@pytest.mark.parametrize("key", ["seconds", "participants", "mib_per_client_round", "seconds_train", "idle_share",
                                 "cluster_sizes_all", "accuracy_mean", "lam_mean"])
@pytest.mark.parametrize("at", [0, 2])
def test_lines_without_a_key_are_drawn_as_far_as_they_go(tmp_path, key, at):
    lines = [line | {"cluster_sizes_all": [1] * line["round"]} for line in made.LINES[3]]
    del lines[at][key]
    run = ReportRun("A", "one", 3, made.run(tmp_path / "run", lines=lines), 4)
    results = Results("", "", ["A"], ["one"], [3], [run])
    shown = [accuracy.draw_accuracy_by_bytes(results, "one"), accuracy.draw_accuracy_by_seconds(results, "one"),
             work.draw_phases(results, "one"), clusters.draw_cluster_sizes(run), clients.draw_lam(results, "one")]
    assert all(figure is not None for figure in shown)
    assert clusters.count_members(run)[1].shape[0] == (2 if (key, at) == ("cluster_sizes_all", 2) else 4)
