"""Functions of the user's own method that return the wrong thing: one line before the first round, with file and line.
"""
from __future__ import annotations

import pytest

from tests.own_code.test_faulty import METHOD, MODULE, attempt, line_of  # noqa: F401

pytestmark = pytest.mark.slow("a run for every function and every wrong return")

START = METHOD.replace("fedavg import FedAvg", "ditto import Ditto, Mine, Shared, Up\nfrom typing import NamedTuple\n"
                       "import numpy as np\nimport torch").replace("(FedAvg)", "(Ditto)")
NOTES = '''
    def message_template(self):
        return Up(self.model.start)

    def messages(self, shared, mine, who):
        return {}
'''
SIGNATURES = {"init": "(self, n)", "client": "(self, shared, mine, data)", "idle": "(self, shared, mine, data)",
         "server": "(self, shared, up, who)", "personal": "(self, shared, mine, data)", "traffic": "(self, shared, up)",
         "message_template": "(self)", "messages": "(self, shared, mine, who)", "with_model": "(self, model)",
         "warm_up_participants": "(self, n, seed)", "predict": "(self, w, x)", "trained": "(self, shared, mine, up)",
         "unadapted": "(self, shared, mine)", "serve_newcomer": "(self, shared, mine, data)",
         "embedding": "(self, mine, up)", "global_model": "(self, shared)", "list_oddities": "(self, rounds)",
         "stages": "(self, shared, rounds)", "stage_of": "(self, shared)"}
# The function, what it does, and what is said of it.
CASES = [
    ("init", "return None", "must return a pair (Shared, Mine), not None"),
    ("init", "return Shared(self.model.start)", "not a Shared of 1"),
    ("init", "return Shared(3), Mine(self.model.start)", "the Shared has an int in its field w"),
    ("init", "return Shared(self.model.start), [self.model.start]", "the Mine is a list of 1"),
    ("init", "return Shared(self.model.start.bfloat16()), Mine(self.model.start)", "init() must return in the field w "
     "of the Shared numbers of type uint8, int32, int64, float32, float64, bool, float16, int8, int16, not a tensor"),
    ("init", "return Shared(self.model.start), Mine(self.model.start + 0j)", "in the field v of the Mine numbers of"),
    ("init", "return Shared(self.model.start + torch.rand(1)), Mine(self.model.start)", "returns another value of the "
     "Shared each time, but every rank and restart calls it; take random numbers from np.random.default_rng((self.mod"),
    ("init", "return Shared(self.model.start), Mine(self.model.start * np.random.default_rng().random())",
     "another value of the Mine"),
    ("client", "return Mine(mine.v.add_(1)), Up(mine.v)", "changes Shared.w in place, which others are still to read"),
    ("idle", "return Mine(mine.v.mul_(2))", "in place, which others"),
    ("personal", "return mine.v[1:].zero_()", "in place, which others"),
    ("trained", "return up.w.mul_(2)", "changes Up.w in place, which others are still to read; write w = w + step"),
    ("unadapted", "return mine.v.mul_(2)", "in place, which others"),
    ("message_template", "return Up(self.model.start.bfloat16())", "in the field w of the message numbers of type"),
    ("client", "return None", "must return a pair (Mine, Up), not None"),
    ("client", "return mine", "not a Mine of 1"), ("client", "yield mine", "not a generator"),
    ("client", "return mine, None", "the Up is None"),
    ("client", "return Mine(mine.v[1:]), Up(mine.v)", "a Mine like that of init(), whose field v is a tensor of shape"),
    ("client", "return Mine(mine.v.double()), Up(mine.v)", "not a tensor of shape (1210,) and type torch.float64"),
    ("client", "return Shared(mine.v), Up(mine.v)", "with the fields v, not a Shared of 1"),
    ("client", "return mine, mine", "cannot take: AttributeError: 'Mine' object has no attribute 'w'"),
    ("idle", "return None", "must return a Mine like that of init(), a NamedTuple of tensors; it is None"),
    ("server", "return None", "must return a Shared like that of init(), a NamedTuple of tensors; it is None"),
    ("server", "return torch.zeros(3)", "it is a tensor of shape (3,)"),
    ("server", "return Shared(up.w.mean().double())", "not a tensor of shape (1210,) and type torch.float64"),
    ("global_model", "return shared.w[:5]", "None, or the weights of the network, a tensor (1210,), not a tensor of"),
    ("global_model", "return 3", "not an int"),
    ("list_oddities", "return None", "list_oddities() must return a list of texts, [] for none, not None"),
    ("list_oddities", "return 'abc'", "not a str"), ("list_oddities", "return [3]", "not a list of 1"),
    ("server", "return Shared(up.w)", "it has a Rows in its field w"),
    ("server", "return Shared(up.w.mean()[:9])", "not a tensor of shape (9,)"),
    ("personal", "return None", "the weights of the network, a tensor of shape (1210,), not None"),
    ("personal", "return shared.w[:4]", "not a tensor of shape (4,)"),
    ("trained", "return 3", "not an int"), ("unadapted", "return 'x'", "not a str"),
    ("traffic", "return 3", "a pair of numbers of bytes (received, sent), not an int"),
    ("traffic", "return 3, float('nan')", "not a tuple of 2"),
    ("stages", "return None", "stages() must return a list of pairs (rounds, Shared), at least one, not None"),
    ("stages", "return []", "at least one, not a list of 0"), ("stages", "return [rounds]", "at least one, not an int"),
    ("stages", "return [(None, shared)]", "stages() must return whole numbers of rounds, not None"),
    ("stages", "return [(rounds, None)]", "must return in each stage a Shared like that of init(), a NamedTuple of"),
    ("stages", "return [(rounds, Shared(shared.w[1:]))]", "not a tensor of shape (1209,)"),
    ("stage_of", "return None", "stage_of() must return a place from 0 to 0 in the list of stages(), not None"),
    ("stage_of", "return 1", "stage_of() must return a place from 0 to 0 in the list of stages(), not an int that is"),
    ("message_template", "return 3", "must return None or a NamedTuple of tensors; it is an int"),
    ("messages", "return None", "each made by Rows.mix or a tensor with a row for each participant, not None"),
    ("messages", "return Up(torch.zeros(3))", "addresses w of shape () to 3 clients"),
    ("messages", "return Up(mine.v.mix(np.ones((1, 9))))", "addresses w of shape (1210,) to 1 clients; the template"),
    ("messages", "return Up(mine.v[:5].mix(np.ones((len(who.ids), 9))))", "addresses w of shape (5,) to"),
    ("with_model", "return None", "the method with its network: end it with `return super().with_model(model)`"),
    ("with_model", "return self", "the method with its network"),
    ("warm_up_participants", "return 3", "the numbers of clients from 0 to 8, ascending, not an int"),
    ("warm_up_participants", "return np.array([3, 9])", "not an array of shape (2,) and type int64"),
    ("warm_up_participants", "return np.array([3, 3])", "not an array of shape (2,) and type int64"),
    ("predict", "return None", "logits, a tensor of shape (b, 10), not None"),
    ("predict", "return self.model(w, x)[:, 1:]", "not a tensor of shape (1, 9)"),
]


@pytest.mark.parametrize("name, body, said", CASES)
def test_what_a_function_returns_is_refused_before_the_first_round(attempt, place, name, body, said):  # noqa: F811
    text = START + ("    idles = True\n" if name == "idle" else NOTES if name == "messages" else "")
    text += f"\n    def {name}{SIGNATURES[name]}:\n        {body}\n"
    code, words = attempt(text, f"method={MODULE}:Own")
    line = max(i for i, of in enumerate(text.splitlines(), 1) if f"def {name}(" in of)
    assert code == 2 and words.count("\n") == 1 and "Traceback" not in words, words
    assert f"{MODULE}.py:{line}: {name}() " in words and said in words, words
    assert not (place / "run").exists()


def test_a_method_with_stages_says_which_of_them_a_round_is_in(attempt):  # noqa: F811
    text = f"{START}\n    def stages(self, shared, rounds):\n        return [(1, shared), (rounds - 1, shared)]\n"
    code, words = attempt(text, f"method={MODULE}:Own")
    assert code == 2 and f"method {MODULE}:Own: stages() returns 2 stages, so define stage_of(), which" in words


def test_what_fails_at_its_first_call_is_named_as_well(attempt):  # noqa: F811
    for name, code in (("personal", 2), ("idle", 2), ("predict", 2), ("server", 1)):
        text = f"{START}    idles = True\n    def {name}{SIGNATURES[name]}:\n        1 / 0\n"
        found, words = attempt(text, f"method={MODULE}:Own")
        assert found == code and f"{MODULE}.py:{line_of(text, '1 / 0')}: ZeroDivisionError" in words


@pytest.mark.parametrize("text, said", [
    ("mean", "NameError: name 'mean' is not defined"),
    ("who.n", "AttributeError: 'Participants' object has no attribute 'n'"),
    ("self.n", "AttributeError: 'Own' object has no attribute 'n'")])
def test_a_name_that_the_server_does_not_know_is_found_before_the_first_round(attempt, text, said):  # noqa: F811
    code, words = attempt(f"{METHOD}    def server(self, shared, up, who):\n        {text}\n        return shared\n",
                          f"method={MODULE}:Own")
    assert code == 2 and said in words.splitlines()[0] and "round" not in words.splitlines()[0], words


@pytest.mark.parametrize("name", ["personal", "idle"])
def test_who_does_not_train_has_no_message(attempt, name):  # noqa: F811
    text = f"{START}    idles = True\n{NOTES}\n    def {name}{SIGNATURES[name]}:\n        return Mine(data.message.w)\n"
    found, words = attempt(text, f"method={MODULE}:Own")
    line = line_of(text, "data.message")
    assert found == 2 and f"{name}(): {MODULE}.py:{line}: AttributeError: 'NoneType'" in words, words


@pytest.mark.parametrize("text, said", [
    ("    def client(self, shared):\n        pass\n", f"{MODULE}.py:12: TypeError: Own.client() takes 2 positional"),
    ("    def server(self, shared, up):\n        pass\n", "server() must take the arguments (self, shared, up, who)"),
    ("    def messages(self, shared):\n        pass\n", "messages() must take the arguments (self, sha"),
    ("    server = 3\n", f"method {MODULE}:Own: server must be a function, not an int"),
    ("    check = True\n", f"method {MODULE}:Own: check must be a function, not a bool"),
    ("    idles = .5\n", f"method {MODULE}:Own: idles must be True or False, or a property that is, not a float"),
    ("    def idles(self):\n        pass\n", "idles must be True or False, or a property that is, not a method")])
def test_functions_of_another_form(attempt, text, said):  # noqa: F811
    code, words = attempt(START + text, f"method={MODULE}:Own")
    assert code == 2 and said in words, words


def test_a_name_for_type_checkers_alone_is_named_with_its_file(attempt):  # noqa: F811
    text = START.replace("import torch", "import torch\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                         "    from torch import Tensor\nclass Kept(NamedTuple):\n    w: Tensor\n")
    text = (f"from __future__ import annotations\n{text}\n    def init(self, n):\n"
            "        return Kept(self.model.start), super().init(n)[1]\n")
    code, words = attempt(text, f"method={MODULE}:Own")
    assert code == 2 and words.count("\n") == 1 and f"{MODULE}.py: Kept: Tensor is imported for type checkers" in words


def test_a_method_that_lacks_functions_is_told_which(attempt):  # noqa: F811
    text = "from dataclasses import dataclass\nfrom fedmpi.method import Method\n\n@dataclass(frozen=True)\n" \
        "class Own(Method):\n    def init(self, n):\n        pass\n"
    code, words = attempt(text, f"method={MODULE}:Own")
    assert code == 2 and f"method {MODULE}:Own has no function client and no personal; define it" in words


@pytest.mark.parametrize("up, words", [("Up(shared.w)", "sends w and has no function server, so the server would keep "
                                        "its first state; define it, or send Nothing()"), ("Nothing()", "")])
def test_what_is_sent_needs_a_function_server(attempt, up, words):  # noqa: F811
    """Without it nothing is learned from what clients send."""
    text = (f"{START.replace('(Ditto)', '(Method)')}    def init(self, n):\n        return Shared(self.model.start), "
            "Nothing()\n    def personal(self, shared, mine, data):\n        return shared.w\n"
            f"    def client(self, shared, mine, data):\n        return mine, {up}\n")
    code, said = attempt(f"from fedmpi.method import Method, Nothing\n{text}", f"method={MODULE}:Own")
    assert (code, said) == ((2, f"fedmpi: method {MODULE}:Own {words}\n") if words else (0, said))


CALLED_BY_ENGINES = ("client", "idle", "personal", "serve_newcomer", "predict")
# The function, what it returns once a round is over, and what is said of it.
LATER = [
    ("client", "None", "must return a pair (Mine, Up), not None"), ("client", "found[0]", "not a Mine of 1"),
    ("client", "(None, found[1])", "the Mine is None"),
    ("client", "(Mine(mine.v[1:]), found[1])", "whose field v is a tensor of shape (1210,) and type torch.float32, not "
     "a tensor of shape (1209,)"),
    ("client", "(Mine(mine.v.double()), found[1])", "not a tensor of shape (1210,) and type torch.float64"),
    ("client", "(found[0], Up(mine.v[1:]))", "an Up like that of its first call, whose field w"),
    ("client", "(found[0], found[0])", "an Up like that of its first call, with the fields w, not a Mine of 1"),
    ("idle", "None", "must return a Mine like that of init(), a NamedTuple of tensors; it is None"),
    ("idle", "Mine(mine.v[:3])", "not a tensor of shape (3,)"),
    ("server", "None", "must return a Shared like that of init(), a NamedTuple of tensors; it is None"),
    ("server", "Shared(found.w[:9])", "not a tensor of shape (9,)"),
    ("personal", "None", "the weights of the network, a tensor of shape (1210,), not None"),
    ("personal", "found[:4]", "not a tensor of shape (4,)"), ("personal", "(found,)", "not a tuple of 1"),
    ("serve_newcomer", "shared", "a tensor of shape (1210,), not a Shared of 1"),
    ("trained", "3", "not an int"), ("unadapted", "mine.v[0]", "not a tensor of shape ()"),
    ("predict", "None", ", 10), not None"), ("predict", "found[:, 1:]", ", 9) and type"),
    ("traffic", "3", "a pair of numbers of bytes (received, sent), not an int"),
    ("stage_of", "-1", "a place from 0 to 0 in the list of stages(), not an int that is -1"),
    ("embedding", "3", "rows of clients (Rows), or None, not an int"),
    ("messages", "None", "each made by Rows.mix or a tensor with a row for each participant, not None"),
    ("messages", "Up(torch.zeros(3))", "addresses w of shape () to"),
    ("message_template", "3", "must return None as in its first call, not an int"),
    ("message_template", "Mine(self.model.start)", "must return None as in its first call, not a Mine of 1"),
]
MESSAGES = """
    def message_template(self):
        return Up(self.model.start)
"""


@pytest.mark.parametrize("engine, name, late, said", [
    *(("loop", *case) for case in LATER), *(("vmap", *case) for case in LATER if case[0] in CALLED_BY_ENGINES)])
def test_what_a_function_returns_in_a_later_round_is_refused(attempt, place, engine, name, late, said):  # noqa: F811
    call = f"super().{name}{SIGNATURES[name]}"
    if name == "messages":
        call = "Up(mine.v.mix(np.ones((len(who.ids), len(mine.v.ids)))))"
    text = f"{START}    idles = True\n{MESSAGES if name == 'messages' else ''}\n    def {name}{SIGNATURES[name]}:\n"
    call = call.replace("self, ", "").replace("(self)", "()")
    text += f"        found = {call}\n        return {late} if is_late() else found\n"
    text = text.replace("@dataclass", "def is_late():\n    books = Path('run/metrics.jsonl')\n"
                        "    return books.exists() and books.stat().st_size > 0\n\n@dataclass", 1)
    code, words = attempt(f"from pathlib import Path\n{text}", f"method={MODULE}:Own", f"engine={engine}", "rounds=3",
                          "data.new_clients=1", "evaluate.embeddings=[1, 2, 3]", "train.participation=.5")
    line = max(i for i, of in enumerate(text.splitlines(), 2) if f"def {name}(" in of)
    assert code == 1 and "Traceback" not in words and "Exception" not in words, words
    assert f"{MODULE}.py:{line}: {name}() " in words and said in words, words
    assert len((place / "run" / "metrics.jsonl").read_text().splitlines()) >= 1


@pytest.mark.parametrize("late, said", [
    ("None", "must return a NamedTuple of tensors as in its first call, not None"),
    ("3", "must return a message like that of its first call, a NamedTuple of tensors; it is an int"),
    ("Up(self.model.start[:3])", "a message like that of its first call, whose field w is a tensor of shape (1210,)")])
def test_a_message_that_gets_another_form_is_refused(attempt, late, said):  # noqa: F811
    text = START.replace("@dataclass", "def is_late():\n    books = Path('run/metrics.jsonl')\n"
                         "    return books.exists() and books.stat().st_size > 0\n\n@dataclass", 1)
    text += (f"    def messages(self, shared, mine, who):\n        return Up(mine.v.mix(np.ones((len(who.ids), "
             f"len(mine.v.ids)))))\n\n    def message_template(self):\n"
             f"        return {late} if is_late() else Up(self.model.start)\n")
    code, words = attempt(f"from pathlib import Path\n{text}", f"method={MODULE}:Own", "rounds=2")
    assert code == 1 and "Traceback" not in words and "message_template() " in words and said in words, words


def test_a_rehearsal_draws_no_random_numbers(attempt, bench, place):  # noqa: F811
    """The rehearsal of a method of one's own leaves no trace in the results."""
    import torch
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    text = f"{START}    def personal{SIGNATURES['personal']}:\n        torch.rand(9)\n        return mine.v[:1]\n"
    assert attempt(text, f"method={MODULE}:Own")[0] == 2 and torch.equal(torch.rand(1), expected)
