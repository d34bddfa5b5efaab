"""Runs that the real code has set up but not begun, for tests of single steps."""
from __future__ import annotations

from itertools import count

import pytest

NUMBERS = count()


@pytest.fixture
def ready(bench):
    """Set up a run in this process as `fedmpi run` does, and return it with its parts and decision, before round 1."""
    from fedmpi.assembly import assemble
    from fedmpi.comm.transport import Solo
    from fedmpi.context import RankContext
    from fedmpi.decision import decide
    from fedmpi.preparation import prepare_run
    from fedmpi.progress import Progress
    from fedmpi.run_request import RunRequest
    from fedmpi.slurm.deadline import Deadline
    decisions = []

    def ready(*words, stop=lambda: False, deadline=None, config=None):
        world, out = Solo(), bench.out(f"ready-{next(NUMBERS)}")
        decisions.append(decide(RunRequest(config or bench.config, list(words), str(out)), world))
        decisions[-1].deadline = deadline or Deadline()
        parts = assemble(world, decisions[-1].config, decisions[-1].federation, world.host, RankContext(),
                         decisions[-1].method)
        progress = Progress(decisions[-1].folder.log_path)
        run = prepare_run(parts, decisions[-1], progress, stop)
        run.parts, run.decision = parts, decisions[-1]
        return run
    yield ready
    for decision in decisions:
        decision.folder.release()
