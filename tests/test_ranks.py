"""Ranks introduce themselves.

Ranks that do not belong together are refused, shared GPUs are named, and a signal may reach any rank."""
from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from fedmpi import ranks
from fedmpi.comm.transport import Solo
from fedmpi.errors import BadInput
from fedmpi.run_request import RunRequest
from tests import launch
from tests.runs import wait_for


@pytest.mark.parametrize("name, remedy", [
    ("fedmpi", "install the same"), ("code", "install the same"), ("torch", "install the same"),
    ("command", "start all ranks with one command")])
def test_ranks_that_do_not_belong_together_are_refused(monkeypatch, name, remedy):
    world = Solo()
    world.size = 3
    mine = ranks.describe_rank(world, ["c.yaml", [], None])
    others = [mine, mine | {"host": "n2"}, mine | {"host": "n3", name: "another"}]
    monkeypatch.setattr(ranks, "gather_objects", lambda world, value: others[:world.size])
    with pytest.raises(BadInput, match=f"rank 2 on n3 has {name} another, rank 0 on .*; {remedy}"):
        ranks.refuse_mixed(world, ["c.yaml", [], None])
    world.size = 2
    # Ranks on different hosts are not refused, nor is an MPI library that takes GPU memory where there is a GPU.
    others[1] |= {ranks.CUDA_AWARE: True}
    ranks.refuse_mixed(world, ["c.yaml", [], None])
    assert world.cuda_aware_by_rank == [mine[ranks.CUDA_AWARE], True]


def test_a_function_is_the_same_word_wherever_it_lies():
    def define():
        def build_network():
            pass
        return build_network
    one, other = define(), define()
    assert str(one) != str(other)
    said = [ranks.describe_rank(Solo(), [{"model": function}])["command"] for function in (one, other)]
    assert said[0] == said[1] and "build_network" in said[0]


def test_every_option_must_be_the_same_on_all_ranks():
    """Also one that is added some day."""
    request = RunRequest("c.yaml")
    for option in dataclasses.fields(RunRequest):
        assert dataclasses.replace(request, **{option.name: "another"}).words != request.words, option.name


def test_another_command_on_another_rank(bench, warm):
    words = ["-m", "fedmpi", "run", bench.config, "--out", str(bench.out("mixed"))]
    first = launch.command(2, *words, python=warm)
    first[first.index("2")] = "1"
    done = subprocess.run([*first, ":", "-n", "1", str(warm), *words, "seed=4"], cwd=bench.folder, text=True,
                          env=launch.ENVIRONMENT, capture_output=True, timeout=launch.LIMIT)
    assert done.returncode == 2 and "['seed=4']" in done.stderr and "start all ranks with one command" in done.stderr
    assert not bench.out("mixed").exists()


def test_the_code_mark_changes_with_the_code(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(ranks, "PACKAGE", tmp_path)
    before = ranks.hash_source()
    (tmp_path / "a.py").write_text("2")
    assert ranks.hash_source() != before


def at(host="n1", gpu=None, hosts=True) -> dict:
    return {"host": host, "gpu": gpu, "hosts": hosts}


@pytest.mark.parametrize("places, said", [
    ([at(hosts=False), at(gpu="a"), at(gpu="b")], []), ([at(), at()], []),
    ([at(hosts=False), at("n1", "a"), at("n2", "a")], []),      # the same number on another host is another GPU
    ([at(hosts=False), at(gpu="a"), at(gpu="b"), at(gpu="a")], ["ranks 1 3 share one GPU of n1"]),
    ([at(hosts=False), at(gpu="a"), at()], ["ranks 2 train on the CPU while others have a GPU"])])
def test_what_is_odd_about_devices(places, said):
    found = ranks.list_warnings(places)
    assert len(found) == len(said) and all(one.startswith(start) for one, start in zip(found, said, strict=True))


@pytest.mark.parametrize("visible, hosts_clients, devices", [
    (4, False, ["cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (2, False, ["cpu", "cuda:0", "cuda:1", "cuda:0"]),
    (4, True, ["cuda:0", "cuda:1", "cuda:2"]),
    (1, False, ["cpu", "cuda:0", "cuda:0"]),      # --gpus-per-task=1: each rank sees only its own GPU
    (0, False, ["cpu", "cpu"])])
def test_each_rank_takes_the_gpu_of_its_place(monkeypatch, visible, hosts_clients, devices):
    import torch

    from fedmpi.config.schema import resolve
    from fedmpi.engines.gpu_card import choose_device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    config, world = resolve({"server": {"hosts_clients": hosts_clients}}), Solo()
    world.host, world.size = "n1", len(devices)
    for world.local_rank, device in enumerate(devices):
        hosts = hosts_clients or world.local_rank > 0
        assert str(choose_device(config, world, "n1", hosts)) == device


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_a_signal_to_one_worker_stops_all(bench, warm):
    job = bench.start(2, "told", "rounds=100000", python=warm)
    wait_for(job, "round      2/")
    (pid,) = (pid for pid, e in launch.processes(job).items() if launch.rank_of(e) == 1)
    os.kill(pid, signal.SIGUSR2)
    done = launch.finish(job)
    assert done.returncode == 75 and done.stdout.splitlines()[-1].startswith("asked to stop: saved after round")
