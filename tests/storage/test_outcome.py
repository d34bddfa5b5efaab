"""What became of a run, from its folder and what its job printed."""
from __future__ import annotations

import json

import pytest

from fedmpi.errors import BadInput
from fedmpi.storage import outcome

LINE = {"round": 2, "accuracy_mean": .5}
START = "job 7: start 1 on n1: c.yaml seed=1\n"


@pytest.mark.parametrize("printed, lines, result, state, said", [
    (None, 0, None, "waiting", ""),
    (START, 0, None, "unfinished", "start 1 on n1: c.yaml seed=1"),
    (None, 1, None, "unfinished", ""),
    (START + "job 7: stopped with code 75 and starts again\n", 1, None, "unfinished", "stopped with code 75 and"),
    (START + "job 7: ended with code 75, cut short by Slurm\n", 1, None, "unfinished", "ended with code 75"),
    (START + "fedmpi: client 3: x\njob 7: ended with code 1\n", 1, None, "failed", "fedmpi: client 3: x"),
    (START + "job 7: ended with code -9\n", 1, None, "failed", "ended with code -9"),
    (START + "fedmpi: of old\njob 7: ended with code 1\n" + START, 1, None, "unfinished", "start 1 on"),
    (START + "job 7: ended with code 0\n", 1, 2, "finished", "ended with code 0"),
    (START + "job 7: ended with code 0\n", 1, 1, "unfinished", "ended with code 0")])
def test_the_state_of_a_run(tmp_path, printed, lines, result, state, said):
    """The last case: more rounds are asked for than its result has."""
    folder = tmp_path / "r"
    folder.mkdir()
    if printed:
        (tmp_path / "r.txt").write_text(printed)
    (folder / "metrics.jsonl").write_text((json.dumps(LINE) + "\n") * lines + '{"round": 3, "accur')
    if result:
        (folder / "result.json").write_text(json.dumps({"rounds": result, "accuracy_mean": .5, "digest": "ab"}))
    found = outcome.of(folder, rounds=2)
    assert found.state == state and found.said.startswith(said) and bool(said) == bool(found.said)
    assert (found.round, len(found.lines)) == ((2, 1) if lines else (0, 0))
    assert (found.starts, found.settings) == ((printed.count("start 1 on"), "seed=1") if printed else (0, ""))


def test_a_damaged_result_is_named(tmp_path):
    for text in ("{", "[]", '{"rounds": 3}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(BadInput, match="result.json is damaged .* remove it"):
            outcome.of(tmp_path)


def test_settings_that_differ():
    a, b = {"x": {"y": 1, "z": [1]}, "w": 2}, {"x": {"y": 3, "z": [1]}, "v": None, "w": 2}
    assert outcome.differing([a, b]) == {"x.y": [1, 3]}
    assert outcome.differing([a, b | {"x": {}}]) == {"x.y": [1, None], "x.z": [[1], None]}
