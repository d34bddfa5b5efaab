"""Which figures there are; they show the numbers of the runs."""
from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.report.figures import accuracy, clients, clusters, embeddings, registry, style, work
from fedmpi.storage.history import read_history
from fedmpi.storage.run_status import read_metrics

pytestmark = pytest.mark.slow("runs, and all figures")


def test_a_figure_for_all_that_the_runs_have_data_for(drawn):
    columns, clustered = ("beta-.3", "few-shot"), ("fedmhc-co", "fedcps")
    wanted = {f"{kind}-{c}" for kind in ("accuracy", "clients", "bytes", "seconds", "distance", "iterations", "lam",
                                         "phases", "labels") for c in columns} | {"agreement-few-shot", "ranks"}
    wanted |= {f"{kind}-{row}-{c}" for kind in ("clusters", "assignments") for row in clustered for c in columns}
    wanted |= {f"tsne-{row}-{c}" for row in ("fedavg", "local", *clustered) for c in columns}
    assert set(drawn) == wanted


def test_two_figures_of_one_name_are_refused():
    """Their files would replace each other."""
    before = list(registry.OF_COLUMN)
    with pytest.raises(ValueError, match="two figures are called 'tsne'"):
        registry.figure_of_column("tsne", "again")(print)
    assert before == registry.OF_COLUMN


def test_axes_are_named(drawn):
    for name, picture in drawn.items():
        assert picture.caption and any(axes.get_xlabel() or axes.get_title() for axes in picture.figure.axes), name
    assert "(%)" in drawn["accuracy-beta-.3"].figure.axes[0].get_ylabel()
    assert "(MiB)" in drawn["bytes-beta-.3"].figure.axes[0].get_xlabel()
    assert "(s)" in drawn["seconds-beta-.3"].figure.axes[0].get_xlabel()


def test_there_are_no_fractions_of_rounds(drawn):
    """The runs are of two rounds."""
    axes = [a for picture in drawn.values() for a in picture.figure.axes if a.get_xlabel() == "round"]
    assert len(axes) > 8 and all(tick == round(tick) for a in axes for tick in a.get_xticks())


def test_curves_are_means_over_seeds(results, drawn):
    lines = drawn["accuracy-beta-.3"].figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == results.rows
    runs = results.of("FedAvg", "beta .3")
    found = np.mean([[line["accuracy_mean"] for line in read_metrics(run.folder)] for run in runs], 0)
    np.testing.assert_allclose(lines[0].get_ydata(), 100 * found)
    assert lines[0].get_xdata().tolist() == [1, 2]


def test_lines_differ_without_colours():
    looks = {(style.style_line(i)["linestyle"], style.style_line(i)["marker"]) for i in range(32)}
    assert len(looks) == 32 and len({style.style_point(i)["marker"] for i in range(8)}) == 8


def test_no_two_of_many_lines_look_alike():
    assert len({tuple(style.style_line(i).values()) for i in range(32)}) == 32


def test_areas_differ_by_hatch_and_many_by_colour_and_hatch():
    assert len({style.style_area(i)["hatch"] for i in range(8)}) == 8
    assert len({(style.style_area(i)["facecolor"], style.style_area(i)["hatch"]) for i in range(64)}) == 64


@pytest.mark.parametrize("k", [1, 8, 9, 20])
def test_the_clusters_of_an_image_have_different_colours(k):
    assert len({*style.choose_colours(k)}) == k
    assert (style.choose_colours(k) == [*style.AREAS[:k]]) == (k <= 8)


def test_many_lines_are_named_beside_the_axes_in_the_order_of_their_ends():
    figure = style.make_figure()
    axes = figure.subplots()
    for i in range(9):
        axes.plot([0, 1], [0, i % 4 * 10 + i], label=str(i), **style.style_line(i))
    style.add_legend(axes)
    figure.canvas.draw()
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == sorted(map(str, range(9)), key=lambda i: -(
        int(i) % 4 * 10 + int(i)))
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_axes_without_lines_have_no_legend():
    axes = style.make_figure().subplots()
    with warnings.catch_warnings(action="error"):
        style.add_legend(axes)
    assert axes.get_legend() is None


def test_bytes_add_up_over_rounds(results, drawn):
    first = read_metrics(results.of("FedAvg", "beta .3")[0].folder)
    assert accuracy.sum_moved_mib(first)[-1] == pytest.approx(sum(line["mib_per_client_round"] * 6 for line in first))
    # One round was not evaluated.
    assert accuracy.sum_moved_mib(first[1:])[-1] == pytest.approx(accuracy.sum_moved_mib(first)[-1])
    # Candidates and idle clients move something, too.
    more = [first[0] | {"mib_candidates": 2., "mib_idle": .5}, *first[1:]]
    assert accuracy.sum_moved_mib(more)[-1] == pytest.approx(accuracy.sum_moved_mib(first)[-1] + 2.5)
    labels = [line.get_label() for line in drawn["bytes-beta-.3"].figure.axes[0].get_lines()]
    assert labels[2] == "Local (moves nothing)"


def test_curves_use_the_rounds_that_all_seeds_have():
    def line(t):
        return {"round": t, "accuracy_mean": t / 10}
    rounds, values = accuracy.find_common_rounds([[line(1), line(2), line(3)], [line(2), line(3)]],
                                     lambda lines: np.array([line["round"] for line in lines]))
    assert rounds.tolist() == [2, 3] and values.tolist() == [[.2, .3], [.2, .3]]
    assert accuracy.find_common_rounds([[]], None)[0].size == 0


def test_the_clients_of_all_seeds(results):
    histories = [read_history(run.folder / "history.h5") for run in results.of("Local", "beta .3")]
    wanted = np.concatenate([h["accuracy"][-1] for h in histories])
    np.testing.assert_array_equal(accuracy.collect_last_accuracies(results.of("Local", "beta .3")),
                                  wanted[~np.isnan(wanted)])


def test_sizes_are_stacked_to_all_clients_that_have_a_cluster(results):
    """Clients count whether they take part or not: half of 6 do, and each has a cluster after at most two rounds."""
    axes = clusters.draw_cluster_sizes(results.of("FedCPS", "beta .3")[0]).axes[0]
    assert axes.get_ylim() == (0, 6) and len(axes.collections) == 3


def test_the_number_of_clusters_may_change(results):
    found = {"round": np.arange(3), "cluster": np.array([[-1, -1, 0, 0], [0, 0, 0, 1], [2, 0, 0, 1]])}
    old, none = SimpleNamespace(lines=[{"round": 1}]), {"round": np.arange(3), "cluster": np.full((3, 4), -1)}
    axes = clusters.draw_cluster_sizes(SimpleNamespace(history=found, outcome=old, name="x")).axes[0]
    assert axes.get_ylim() == (0, 4) and len(axes.collections) == 3
    for history in ({}, none):
        assert clusters.draw_cluster_sizes(SimpleNamespace(history=history, outcome=old, name="x")) is None


def test_sizes_are_those_of_every_round_evaluated_or_not():
    """In round 3 nobody was assigned; cluster 2 has members for a while, cluster 3 never."""
    lines = [{"round": 0, "cluster_sizes_all": [2, 0, 0, 0]}, {"round": 1, "cluster_sizes_all": [1, 2, 1, 0]},
             {"round": 2, "cluster_sizes_all": [2, 3, 0, 0]}, {"round": 3}]
    run = SimpleNamespace(history={}, outcome=SimpleNamespace(lines=lines), name="x")
    rounds, counts = clusters.count_members(run)
    assert rounds.tolist() == [0, 1, 2] and counts.tolist() == [[2, 1, 2], [0, 2, 3], [0, 1, 0]]
    assert len(clusters.draw_cluster_sizes(run).axes[0].collections) == 3


def test_the_image_of_assignments_is_the_history(results):
    run = results.of("FedMHC & co", "few-shot")[0]
    image = clusters.draw_assignments(run).axes[0].collections[0].get_array()
    found = read_history(run.folder / "history.h5")["cluster"]
    order = np.lexsort((found[-1], run.federation.groups))
    np.testing.assert_array_equal(image, found[:, order].T)
    assert clusters.find_column_edges(np.array([1, 2, 5])).tolist() == [.5, 1.5, 2.5, 5.5]
    # Column 0 is before the first round.
    assert clusters.find_column_edges(np.array([0, 2])).tolist() == [-.5, .5, 2.5]


def test_lines_stand_between_the_planted_groups():
    """In the order of groups 0, 0, 1, 2, 2 they change after two and after three clients."""
    history = {"round": np.array([1]), "cluster": np.array([[1, 0, 1, 0, 1]])}
    federation = SimpleNamespace(groups=np.array([2, 0, 1, 2, 0]))
    axes = clusters.draw_assignments(SimpleNamespace(history=history, federation=federation, name="x")).axes[0]
    assert [line.get_ydata()[0] for line in axes.get_lines()] == [2, 2, 3, 3]
    assert axes.collections[0].get_array().ravel().tolist() == [0, 1, 1, 0, 1]


def test_a_single_cluster_is_an_image_too():
    history = {"round": np.array([1, 2]), "cluster": np.array([[-1, 0], [0, 0]])}
    run = SimpleNamespace(history=history, federation=None, name="x")
    image = clusters.draw_assignments(run).axes[0].collections[0].get_array()
    assert image.filled(-1).tolist() == [[-1, 0], [0, 0]]
    history["cluster"] = np.full((2, 2), -1)
    assert clusters.draw_assignments(run) is None


def test_dollars_in_names_are_no_formulas_and_those_of_axes_stay():
    figure = style.make_figure()
    axes = figure.axes[0] if figure.axes else figure.add_subplot()
    axes.set(title=r"a $1 $2 \bill", xlabel="rounds", yscale="log", ylim=(1, 1e9))
    assert style.render(figure, {"png": 50})["png"].startswith(b"\x89PNG")
    assert not axes.title.get_parse_math() and axes.xaxis.label.get_parse_math()
    assert all(label.get_parse_math() for label in axes.get_yticklabels())


def test_lam_of_planted_groups(results):
    labels = [line.get_label() for line in clients.draw_lam(results, "few-shot").axes[0].get_lines()]
    assert labels == ["FedCPS: all clients", "FedCPS: other", "FedCPS: few shot"]


def test_tsne_by_cluster_and_planted_group(results):
    titles = [axes.get_title() for axes in embeddings.draw_tsne(results.of("FedCPS", "few-shot")[0]).axes]
    assert titles == ["cluster, round 1", "cluster, round 2", "planted group, round 1", "planted group, round 2"]
    assert np.isfinite(embeddings.lay_out(np.zeros((4, 5)))).all()
    near = embeddings.lay_out(np.repeat([[0.] * 5, [9.] * 5], 6, 0) + .1 * np.random.default_rng(0).random((12, 5)))
    first, second = near[:6], near[6:]
    within = max(np.ptp(first, 0).max(), np.ptp(second, 0).max())
    assert np.linalg.norm(first.mean(0) - second.mean(0)) > within


def test_phases_of_a_run_fit_into_its_rounds(results):
    """Each phase is timed by itself, and their sum may not exceed the time of the round."""
    for run in results.runs[:-1]:
        lines, (train, evaluation, rest, idle) = read_metrics(run.folder), work.average_phases(run)
        assert min(train, evaluation, rest) > 0 and idle == 0
        assert train == pytest.approx((lines[0]["seconds_train"] + lines[1]["seconds_train"]) / 2)
        assert evaluation == pytest.approx((lines[0]["seconds_judge"] + lines[1]["seconds_judge"]) / 2)


def test_a_figure_is_the_same_file_again(results):
    files = {style.render(accuracy.draw_accuracy_by_client(results, "beta .3"), {"svg": 50})["svg"] for _ in range(2)}
    assert len(files) == 1


def test_the_labels_are_those_of_the_column(results):
    for column in ("beta .3", "few-shot"):
        title = clients.draw_label_distribution(results, column).get_suptitle()
        assert ("few_shot(" in title) == (column == "few-shot")
