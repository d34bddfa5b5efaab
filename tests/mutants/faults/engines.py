"""Faults planted into fedmpi/engines, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # streams and draws
    ("fedmpi.engines.batch_plan:draw_noise", "NOISE_STREAM_OFFSET + stream", "stream"),
    ("fedmpi.engines.batch_plan:make_generator", "when % 2 ** 32", "when % 256"),
    ("fedmpi.engines.batch_plan:draw_subset", "FIXED_ROUND if fixed else local.round", "local.round"),
    ("fedmpi.engines.batch_plan:draw_subset", "share * n + 1e-9", "share * n"),
    ("fedmpi.engines.batch_plan:draw_batches", "n - (per_epoch - 1) * local.batch", "local.batch"),
    ("fedmpi.engines.batch_plan:change_batches", "steps=steps", "steps=local.steps"),
    # what a rank measures and keeps
    ("fedmpi.engines.batch_plan:get_local_training", "max(0, when)", "when"),
    # the looped engine
    ("fedmpi.engines.loop:LoopData.batches", "counts[start:start + together]", "counts[:together]"),
    ("fedmpi.engines.loop:LoopData.batches", "at * size:at * size + count], y", "at * count:at * count + count], y"),
    ("fedmpi.engines.step:Step.take", "if options.clip:", "if options.clip and not options.momentum:"),
    ("fedmpi.engines.step:Step.take", "pull.velocity.add_((pull.weights - pull.centre) * pull.factor)", "pass"),
    ("fedmpi.engines.step:Step.take", "part.copy_(values)", "pass"),
    ("fedmpi.engines.step:SparseRows.take", "self.steps += 1", "self.steps = 1"),
    ("fedmpi.engines.loop:LoopData.id", "if self.number is None", "if not self.number"),
    ("fedmpi.engines.loop:Loop.apply", "(local.seed, local.round, client)", "(local.seed, client)"),
    # the vectorised engine
    ("fedmpi.engines.vmap:Vmap._tried", "len(chunk) // 2", "len(chunk) - 1"),
    ("fedmpi.engines.vmap:Vmap._fitting", "VECTORS_PER_CLIENT * 4", "4"),
    ("fedmpi.engines.cohort:Cohort.plans", "count.clamp_min(1)", "self.local.batch"),
    # states, samples, homes
    ("fedmpi.engines.engine_choice:time_engine", "group.clients[:CLIENTS_TIMED]", "group.clients")]
