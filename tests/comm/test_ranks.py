"""Collectives and the verbs of Rows against NumPy on all rows at once, on three ranks of a real MPI library and on 1,
2, 3 and 5 forked ones. So the transport of forked ranks is compared with a real library, too."""
from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess

import numpy as np
import pytest

from tests import forked, launch, warm
from tests.comm import ranks as job
from tests.sockets import Post, mesh

SIZES = (1, 2, 3, 5)
JOBS = [("real", 3), *(("forked", size) for size in SIZES)]
# Fewer ways of hosting for ranks of a real library, which do not sleep while they wait for one another: ranks without
# clients, and tensors that MPI itself writes.
FEWER = ("one", "straight")
SLOW = pytest.mark.slow("many orders to three ranks and more, which wait for one another")


def run_real(size: int, *words) -> CompletedProcess:
    """Run ranks that a real launcher starts and a real MPI library connects, as forks that have PyTorch loaded."""
    with warm.python() as python:
        return launch.finish(launch.start(size, "-m", *words, python=python))


def ways_of_hosting(kind: str, size: int) -> tuple[str, ...]:
    return FEWER if kind == "real" else (*FEWER, "shuffled") if size == 5 else job.HOSTING


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What a job of some kind and size computes and prints; each job runs once."""
    found = {}

    def get(kind, size) -> tuple[dict[str, np.ndarray], str]:
        if (kind, size) not in found:
            path, run = tmp_path_factory.mktemp("ranks") / "results.npz", forked.run if kind == "forked" else run_real
            done = run(size, "tests.comm.ranks", path, ",".join(ways_of_hosting(kind, size)), size == 3)
            assert done.returncode == 0, done.stdout + done.stderr
            with np.load(path, allow_pickle=False) as file:
                found[kind, size] = dict(file), done.stdout.splitlines()[-1]
        return found[kind, size]
    return get


@pytest.fixture(scope="module")
def computed(jobs):
    return lambda kind, size: jobs(kind, size)[0]


@pytest.fixture(scope="module", params=[pytest.param(job, marks=SLOW if job[1] > 2 else ()) for job in JOBS],
                ids="{0[0]}-{0[1]}".format)
def which(request):
    return request.param


@pytest.fixture(scope="module")
def size(which):
    return which[1]


@pytest.fixture(scope="module")
def results(computed, which):
    return computed(*which)


@pytest.mark.parametrize("how", ["", "in pieces: "])
@pytest.mark.parametrize("dtype", job.DTYPES)
def test_broadcast_and_gather(results, size, how, dtype):
    heard = results[f"{how}broadcast {dtype}"]
    assert heard.dtype == dtype and len(heard) == size
    assert all(np.array_equal(copy, job.piece(0, dtype)) for copy in heard)
    gathered = results[f"{how}gather {dtype}"]
    assert gathered.dtype == dtype
    assert np.array_equal(gathered, np.concatenate([job.uneven(r, dtype) for r in range(size)]))


@pytest.mark.parametrize("how", ["", "in pieces: ", "by the library: "])
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_reduce(results, size, how, dtype):
    assert np.array_equal(results[f"{how}reduce {dtype}"], sum(job.piece(r, dtype) for r in range(size)))


def test_orders_of_every_length_arrive(results, size):
    assert np.array_equal(results["orders"], [[job.text(n).sum() for n in job.LENGTHS]] * size)


def test_the_state_arrives_where_it_is_to_lie(results, size):
    """At odd ranks MPI itself writes into the tensors."""
    odd, total = np.arange(size) % 2, job.HEADER_BYTES * (job.HEADER_BYTES - 1) / 2
    assert np.array_equal(results["news"], [[3, 1, 1, 1, *[i] * 3, total, 3, 2 * job.HEADER_BYTES] for i in odd])
    assert np.array_equal(results["less news"], [[1, 1, 0, 0, i, total + job.HEADER_BYTES] for i in odd])


def reference(ids) -> dict[str, np.ndarray]:
    """Return what every verb should give, computed on the concatenated rows."""
    ids = np.array(ids)
    x, w, group = np.array([job.row(i) for i in ids], np.float64), job.weights(ids), job.GROUP[ids]

    def by(block, weight):
        out = np.full((job.K, job.D), 7.)[:, block]
        for j in set(group):
            out[j] = np.average(x[group == j][:, block], 0, weight[group == j])
        return out

    def middle(rows, how):
        rows, n = np.sort(rows, 0), len(rows)
        # A fifth of the members is left out, rounded up.
        cut = (n - 1) // 2 if how == "median" else {9: 2, 4: 1, 3: 1, 2: 0, 1: 0}[n]
        return rows[cut:n - cut].mean(0)

    def robust(how):
        groups = {j: middle(x[group == j], how) for j in set(group)}
        return {f"{how} mean": middle(x, how), f"{how} mean block": middle(x, how)[5:21],
                f"{how} mean_by": np.array([groups.get(j, np.full(job.D, 7.)) for j in range(job.K)])}
    ones, whole = np.ones(len(ids)), slice(None)
    mix = (np.outer(w, w) - .3) @ x
    more = np.concatenate([x, x[:2] + 1])
    return {
        "gram beside": more @ more.T,
        "combine": np.stack([w, w ** 2]) @ x, "gram": x @ x.T, "gram block": x[:, 5:21] @ x[:, 5:21].T,
        "mix": mix, "mix two": np.einsum("imn,nd->imd", job.pairs(len(ids)), x[:, 5:21]).reshape(len(ids), -1),
        "sum": x.sum(0), "sum weighted": w @ x, "mean": x.mean(0), "mean weighted": np.average(x, 0, w),
        "mean block": np.average(x[:, 5:21], 0, w), "mean block of block": np.average(x[:, 8:21], 0, w),
        "mean_by": by(whole, ones), "mean_by weighted": by(whole, w), "mean_by block": by(slice(30, None), w),
        **robust("median"), **robust("trimmed_mean"), "gather": x, "gather block": x[:, 5:21],
        "distances": np.linalg.norm(x - 50 * np.eye(job.K, job.D)[group, ::-1], axis=1),
        "other": np.full(3, len(ids))}


@pytest.mark.parametrize("who", job.WHO)
def test_verbs_are_numpy_on_all_rows(results, which, who):
    for verb, expected in reference(job.WHO[who]).items():
        for hosting in ways_of_hosting(*which):
            found, at = results[f"exact/{hosting}/{who}/{verb}"], (verb, hosting)
            double = verb.startswith(("gram", "distances"))
            assert found.dtype == (np.float64 if double else np.float32) and found.shape == expected.shape, at
            assert np.array_equal(found, expected.astype(np.float32)) or np.allclose(found, expected, 3e-7, 1e-9), at


@pytest.mark.parametrize("who", job.WHO)
def test_sums_in_single_precision_are_close(results, which, who):
    hostings = set(job.SINGLE) & set(ways_of_hosting(*which))
    for verb, expected in reference(job.WHO[who]).items():
        for hosting in hostings:
            assert np.allclose(results[f"float32/{hosting}/{who}/{verb}"], expected, 1e-5, 1e-6), (verb, hosting)
    assert "straight" in hostings


@pytest.mark.parametrize("who", job.WHO)
def test_exact_sums_do_not_depend_on_hosting(results, which, who):
    for verb in reference(job.WHO[who]):
        found = {results[f"exact/{hosting}/{who}/{verb}"].tobytes() for hosting in ways_of_hosting(*which)}
        assert len(found) == 1, verb


@SLOW
def test_exact_sums_do_not_depend_on_the_number_of_ranks(computed):
    """Nor do they depend on the library that carries the messages."""
    found = {which: {name: value.tobytes() for name, value in computed(*which).items() if name.startswith("exact/")}
             for which in JOBS}
    everything = found["forked", 3]
    for which, one in found.items():
        assert len(one) == len(ways_of_hosting(*which)) * len(job.WHO) * len(reference([0]))
        assert all(value == everything[name] for name, value in one.items())


@SLOW
def test_forked_ranks_get_what_ranks_of_a_real_library_get(computed):
    real, forked = computed("real", 3), computed("forked", 3)
    others = tuple(f"{how}/{hosting}/" for how in ("exact", "float32") for hosting in set(job.HOSTING) - set(FEWER))
    assert real.keys() == {name for name in forked if not name.startswith(others)}
    for name, value in real.items():
        np.testing.assert_array_equal(value, forked[name], err_msg=name, strict=True)


@pytest.mark.slow("nine ranks")
def test_more_ranks_than_columns_and_than_sums_by_hand(tmp_path, computed):
    """On nine ranks some have no column of a block for robust means, and the library computes sums."""
    done = forked.run(9, "tests.comm.ranks", tmp_path / "nine.npz", "shuffled", False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "nine.npz", allow_pickle=False) as file:
        nine, expected = dict(file), computed("forked", 3)
    found = [name for name in nine if name.startswith("exact/")]
    assert len(found) == len(job.WHO) * len(reference([0]))
    for name in found:
        np.testing.assert_array_equal(nine[name], expected[name], err_msg=name, strict=True)
    assert np.array_equal(nine["reduce int64"], sum(job.piece(r, "int64") for r in range(9)))


@SLOW
def test_methods_have_the_digests_that_they_have_with_a_real_library(jobs):
    real, forked = (json.loads(jobs(kind, 3)[1]) for kind in ("real", "forked"))
    assert list(real) == list(job.KINDS) and real == forked


def test_threads_of_a_forked_rank_may_wait_at_once():
    """The heartbeat waits beside the main thread, but a poll object refuses a second thread."""
    a, b = (Post(rank, sockets) for rank, sockets in enumerate(mesh(2)))
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(a.wait, 0, 1, lambda tag, wanted=wanted: tag == wanted) for wanted in range(4)]
        for tag in range(4):
            b.send(0, tag, b"%d" % tag, 0)
        assert [found.result() for found in waiting] == [(1, tag, b"%d" % tag) for tag in range(4)]
