"""What follows from launchers' environment variables: which process prints, whether cores are shared, and whether
ranks see each other."""
from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from fedmpi.comm import launcher
from fedmpi.errors import BadInput

NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE",
         "SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
         "SLURM_STEP_NUM_TASKS")


@pytest.fixture
def environment(monkeypatch):
    """Set launchers' variables; all others are not set."""
    def environment(**variables):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            assert name in NAMES
            monkeypatch.setenv(name, value)
    return environment


@pytest.mark.parametrize("variables, speaks", [
    ({}, True), ({"PMI_RANK": "0"}, True), ({"PMI_RANK": "1"}, False), ({"SLURM_PROCID": "3"}, False),
    ({"SLURM_PROCID": "0"}, True), ({"OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "2", "SLURM_PROCID": "2"}, True),
    ({"OMPI_COMM_WORLD_RANK": "2", "SLURM_PROCID": "0"}, False), ({"PMI_RANK": "0", "SLURM_PROCID": "4"}, True)])
def test_the_launchers_first_process_speaks(environment, variables, speaks):
    """The inner launcher counts: mpiexec may start its processes inside a step of srun."""
    environment(**variables)
    assert launcher.reports_refusal() is speaks


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_the_cores_are_those_that_a_process_is_bound_to():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(mine)})
        assert launcher.list_cores() == [max(mine)]
    finally:
        os.sched_setaffinity(0, mine)
    assert launcher.list_cores() == sorted(mine)


@pytest.mark.parametrize("variables, mine, all_cores, shared", [
    ({}, 1, 1, False), ({"MPI_LOCALNRANKS": "3"}, 2, 2, True), ({"MPI_LOCALNRANKS": "2"}, 2, 2, False),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "9"}, 8, 8, True), ({"SLURM_NTASKS_PER_NODE": "4"}, 2, 64, True),
    ({"SLURM_NTASKS_PER_NODE": "4"}, 1, 64, False),      # each rank is bound to its own core
    ({"SLURM_NTASKS_PER_NODE": "4"}, 1, 1, True), ({"SLURM_NTASKS_PER_NODE": "4(x2)"}, 2, 2, False),
    ({"MPI_LOCALNRANKS": "2", "SLURM_NTASKS_PER_NODE": "9"}, 4, 4, False),
    ({"SLURM_STEP_TASKS_PER_NODE": "3"}, 2, 2, True)])
def test_whether_ranks_share_cores(environment, monkeypatch, variables, mine, all_cores, shared):
    environment(**variables)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(mine)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: all_cores)
    assert launcher.shares_cores() is shared
    # As on macOS, every rank may use all cores.
    monkeypatch.delattr(os, "sched_getaffinity")
    assert launcher.shares_cores() is (variables != {} and "(" not in str(variables)
                                     and int([*variables.values()][0]) > all_cores)


@pytest.mark.parametrize("variables, said", [
    ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI's mpirun started 4 processes"),
    ({"PMI_SIZE": "2"}, "MPICH's mpiexec started 2 processes"),
    ({"SLURM_STEP_NUM_TASKS": "8"}, "srun started 8 processes"),
    ({"PMI_SIZE": "3", "SLURM_STEP_NUM_TASKS": "1"}, "MPICH's mpiexec started 3"),
    ({"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}, "srun started 2"),      # srun --mpi=pmi2 of another library
    ({"PMI_SIZE": "1"}, None), ({"OMPI_COMM_WORLD_SIZE": "some"}, None), ({}, None),
    ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "1", "MPI_LOCALNRANKS": "5"}, None),
    ({"SLURM_STEP_NUM_TASKS": "2", "MPI_LOCALNRANKS": "5"}, "srun started 2"),
    ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "1"}, None)])
def test_processes_that_were_started_together_but_are_alone(environment, variables, said):
    environment(**variables)
    lonely, together = (SimpleNamespace(size=size, library="Some MPI 1.0") for size in (1, 2))
    launcher.refuse_lonely(together)
    if said is None:
        launcher.refuse_lonely(lonely)
        return
    with pytest.raises(BadInput) as caught:
        launcher.refuse_lonely(lonely)
    message = str(caught.value)
    assert message.startswith(said) and "this one is alone in its MPI world (library: Some MPI 1.0)" in message
    assert message.endswith("(MPICH: srun --mpi=pmi2; Open MPI: srun --mpi=pmix).")


@pytest.mark.parametrize("variables, by_srun", [
    ({"SLURM_STEP_NUM_TASKS": "1"}, True), ({}, False), ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "2"}, True),
    ({"SLURM_STEP_NUM_TASKS": "2", "MPI_LOCALNRANKS": "5"}, True),
    ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "5"}, False),
    ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "2"}, False)])
def test_the_step_of_another_launcher_is_not_ours(environment, variables, by_srun):
    environment(**variables)
    assert launcher.was_started_by_srun() is by_srun
