"""Further measures of a client: by hand, against scikit-learn, and by a user's own function."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from fedmpi import registry
from fedmpi.clients import measures
from fedmpi.clients.evaluation import read_score, score_batch
from fedmpi.clients.measures import BUILT_IN, load_measures, measure_logits, try_measures
from fedmpi.config.schema import Evaluate, resolve
from fedmpi.data.client_table import CLIENT_NUMBERS
from fedmpi.errors import BadInput, FaultyCode, FedmpiError
from fedmpi.task import CLASSIFICATION
from tests.federations import Lab, Odd, method
from tests.own_code.modules import write

NAMES = ("auc", "balanced_accuracy", "calibration_error")
auc, balanced_accuracy, calibration_error = (BUILT_IN[name] for name in NAMES)


def logits_of(probabilities) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


@settings(max_examples=30)
@given(n=st.integers(2, 40), c=st.integers(2, 6), seed=st.integers(0, 999), coarse=st.booleans())
def test_auc_and_balanced_accuracy_are_scikit_learns(n, c, seed, coarse):
    """This includes equal probabilities, and classes that the client does not have."""
    generator = torch.Generator().manual_seed(seed)
    logits, y = torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)
    if coarse:
        logits = logits.sign()
    own, p = y.unique().tolist(), logits.double().softmax(1).numpy()
    if len(own) == 1:
        assert math.isnan(auc(logits, y))
    else:
        assert auc(logits, y) == pytest.approx(np.mean([roc_auc_score(y == k, p[:, k]) for k in own]))
        if len(own) == c > 2:
            assert auc(logits, y) == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))
    # scikit-learn warns of predictions that are not among the labels.
    absent = ~np.isin(logits.argmax(1), own)
    if not absent.any():
        assert balanced_accuracy(logits, y) == pytest.approx(balanced_accuracy_score(y, logits.argmax(1)))


def test_auc_by_hand():
    """Of six pairs the positive sample wins four, and one is equal; a class without samples does not count."""
    p = logits_of([[.7, .2, .1], [.5, .4, .1], [.2, .7, .1], [.7, .2, .1], [.1, .8, .1]])
    y = torch.tensor([0, 0, 1, 1, 1])
    assert auc(p, y) == pytest.approx((.5 + 1 + 1 + 0 + 1 + 1) / 6)


def test_outputs_that_are_not_finite_have_no_auc():
    assert math.isnan(auc(torch.tensor([[0., math.nan], [1., 0.]]), torch.tensor([0, 1])))


def test_a_sample_whose_outputs_are_nan_is_wrong_whatever_its_class():
    """argmax of nan is the first nan, which would make samples of that class right."""
    logits, y = torch.eye(3)[[0, 1, 2, 0, 0, 1, 2]], torch.tensor([0, 1, 2, 1, 0, 1, 2])
    logits[4:] = math.nan
    logits[5] = torch.tensor([0, math.nan, 0])
    for own in (torch.ones(7), torch.tensor([1, 1, 1, 1, 1, 1, 0])):
        n = int(own.sum())
        correct, tested, loss, f1 = read_score(score_batch(logits[None], y[None], own[None]).double().numpy(), n, 3)
        assert (correct, tested) == (3, n) and math.isnan(loss)
        assert (correct, tested, f1) == pytest.approx(measure_logits(logits[:n], y[:n])[[0, 1, 3]])
        assert f1 == pytest.approx((1 / 2 + 1 / 2 + (2 / 3 if n == 7 else 1)) / 3)
    assert balanced_accuracy(logits, y) == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    assert math.isnan(calibration_error(logits, y))


def test_balanced_accuracy_by_hand():
    p = logits_of([[.9, .1, 0], [.9, .1, 0], [.9, .1, 0], [.1, .9, 0]])
    assert balanced_accuracy(p, torch.tensor([0, 0, 1, 1])) == .75
    assert balanced_accuracy(p, torch.tensor([0, 0, 0, 1])) == 1
    # With a single class it is the recall of that class.
    assert balanced_accuracy(p, torch.tensor([1, 1, 1, 1])) == .25


def test_calibration_error_by_hand():
    """Two samples of confidence .55 (one right) and two of .9 (both right) are in two bins."""
    p = logits_of([[.55, .45], [.45, .55], [.9, .1], [.1, .9]])
    y = torch.tensor([0, 0, 0, 1])
    assert calibration_error(p, y) == pytest.approx((2 * abs(.5 - .55) + 2 * abs(1 - .9)) / 4)


def test_calibration_error_has_15_bins_that_hold_their_upper_edge():
    # .6 is the edge 9 / 15
    below, edge, above = ([q, 1 - q] for q in (.6 - 1e-9, .6, .6 + 1e-9))
    right = torch.tensor([0, 1])
    assert calibration_error(logits_of([below, edge]), right) == pytest.approx(abs(.5 - .6))
    assert calibration_error(logits_of([edge, above]), right) == pytest.approx(np.mean([1 - .6, .6]))
    assert calibration_error(logits_of([[.61, .39], [.66, .34]]), right) == pytest.approx(
        abs((1 - .61) + (0 - .66)) / 2)      # both in (9 / 15, 10 / 15]
    assert measures.CONFIDENCE_BINS == 15


@settings(max_examples=30)
@given(n=st.integers(1, 60), c=st.integers(2, 5), seed=st.integers(0, 999))
def test_calibration_error_is_that_of_its_formula(n, c, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, y = 2 * torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)
    confidence, found = logits.double().softmax(1).max(1)
    error = 0.
    for m in range(1, 16):
        inside = (confidence > (m - 1) / 15) & (confidence <= m / 15)
        if inside.any():
            gap = (found == y)[inside].double().mean() - confidence[inside].mean()
            error += float(inside.double().mean() * gap.abs())
    assert calibration_error(logits, y) == pytest.approx(error, abs=1e-12)


OWN = """
import math
import numpy as np
import torch
THREE = 3
def share_of_zeros(logits, y):
    return (y == 0).double().mean()
def spoils(logits, y):
    logits.zero_(), y.zero_()
    return np.float32(.5)
def words(logits, y):
    return "much"
def several(logits, y):
    return logits[0]
def fails(logits, y):
    raise KeyError("a key")
def fails_later(logits, y):
    return math.nan if len(y) == 20 else words(logits, y)
def unlike(logits):
    return 1.
def takes_two_of_a_thousand(logits, y):
    return float(len(y) == 2 * y.unique().numel() == 2000) if logits.shape == (2000, 1500) else "another shape"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, {"mine_measures.py": OWN})


@pytest.mark.parametrize("function, said", [
    ("words", "must return a number, not a str"), ("several", "must return a number, not a Tensor"),
    ("fails", "KeyError"), ("unlike", "TypeError"), ("THREE", "is int, not a function"), ("nothing", "has no nothing")])
def test_a_function_that_measures_nothing_is_refused_before_the_run(own, function, said):
    with pytest.raises(BadInput, match=said) as caught:
        try_measures(["auc", f"mine_measures:{function}"], 10, CLASSIFICATION)
    assert "mine_measures" in str(caught.value) and "\n" not in str(caught.value)


def test_a_function_is_tried_on_a_thousand_classes_at_most(own):
    try_measures(["mine_measures:takes_two_of_a_thousand"], 1500, CLASSIFICATION)
    with pytest.raises(FaultyCode, match="must return a number"):
        try_measures(["mine_measures:takes_two_of_a_thousand"], 900, CLASSIFICATION)


def test_a_function_that_fails_later_ends_the_run_as_a_failure(own):
    try_measures(["mine_measures:fails_later"], 10, CLASSIFICATION)
    measure, = load_measures(["mine_measures:fails_later"])
    with pytest.raises(FedmpiError, match=r"mine_measures.py:\d+: it must return a number, not a str") as caught:
        measure(torch.zeros(2, 3), torch.zeros(2).long())
    assert not isinstance(caught.value, FaultyCode) and caught.value.code == 1


@pytest.mark.parametrize("given, said", [
    (["auroc"], r"measures = \['auroc'\]: 'auroc' is not known; there are auc, balanced_accuracy, calibration_error"),
    (["auk"], r"did you mean auc\?"), (["f", "auc", "auc"], "'f' is not known"), (["auc", "auc"], "are called auc"),
    (["auc", "a:auc"], "are called auc"), (["a:b", "c:b"], "are called b"), (["a:loss"], "cannot be called loss"),
    *(([f"a:{name}"], f"cannot be called {name}") for name in ("name", "attacker", "client", *CLIENT_NUMBERS)),
    (["a:f1_of_two"], "cannot be called"), (["a:mine_after"], "cannot be called"),
    (["a:"], "should be module:function"), (["a:b.c"], "should be module:function"), ("auc", "should be a list"),
    ([3], "string")])
def test_wrong_measures_are_refused_in_one_line(given, said):
    with pytest.raises(BadInput, match=said) as caught:
        resolve({"evaluate": {"measures": given}})
    assert "\n" not in str(caught.value) and str(caught.value).startswith("evaluate.measures")


def test_names_that_only_begin_alike_are_free():
    assert Evaluate(measures=("a:lossless", "b:rounded")).columns == ("lossless", "rounded")
    assert registry.list_built_in("measures") == list(NAMES)


def test_every_measured_model_has_its_further_measures(own, mlp, federation):
    """They follow the other measures, which stay the same, before and after training; without samples they are nan."""
    names = ("balanced_accuracy", "mine_measures:spoils", "mine_measures:share_of_zeros")
    labs = [Lab(method("fedavg", mlp), Odd(federation), evaluate=Evaluate(measures=given)) for given in ((), names)]
    plain, further = (lab.go(1, evaluates=True).evaluated for lab in labs)
    assert plain.shape == (8, 3, 5) and further.shape == (8, 3, 8)
    np.testing.assert_array_equal(further[..., :5], plain)
    assert labs[0].digest() == labs[1].digest()
    assert np.isnan(further[2, 0, 5:]).all() and not further[2, 2].any()
    for client in (0, 5):
        s = federation.client(client)
        x, y = torch.from_numpy(s.x_test), torch.from_numpy(s.y_test).long()
        for when, w in ((0, labs[1].shared.w), (1, labs[1].group.ups[client].w)):
            recalls = balanced_accuracy(mlp(w, x), y)
            expected = [recalls, .5, float((y == 0).double().mean())]
            np.testing.assert_allclose(further[client, when, 5:], expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_on_a_gpu_the_outputs_are_measured_on_the_host(engine, mlp, federation, monkeypatch):
    """The code for a GPU runs on the CPU, for many clients at once and for one after another."""
    from fedmpi.engines.loop import Loop
    from fedmpi.engines.vmap import Vmap
    names = ("auc", "calibration_error")
    made = {"loop": Loop, "vmap": Vmap}[engine]()
    lab = Lab(method("fedbabu", mlp), Odd(federation), made, evaluate=Evaluate(measures=names)).go(1)
    host = lab.evaluate(1)
    monkeypatch.setattr(lab.group, "device", type("Cuda", (), {"type": "cuda"})())
    evaluator = lab.group.evaluator
    found = {}
    for client in lab.group.clients:
        evaluator.measure(found, client, client, lab.method.unadapted(lab.shared, ()))
    evaluator.finish()
    np.testing.assert_allclose([found[c] for c in lab.group.clients], host[:, 2, 1:], rtol=1e-5)
