"""Faults planted into fedmpi/engines, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    ("fedmpi.engines.batch_plan:get_local_training", "max(when - 1, 0) if to_judge", "when if to_judge"),
    ("fedmpi.engines.engine_choice:find_vmap_obstacle", "if of_network else", "if why else"),
    # streams and draws
    ("fedmpi.engines.batch_plan:draw_noise", "NOISE_STREAM_OFFSET + stream", "stream"),
    ("fedmpi.engines.batch_plan:make_generator", "when % 2 ** 32", "when % 256"),
    ("fedmpi.engines.batch_plan:draw_subset", "FIXED_ROUND if fixed else local.round", "local.round"),
    ("fedmpi.engines.batch_plan:draw_subset", "share * n + 1e-9", "share * n"),
    ("fedmpi.engines.batch_plan:draw_batches", "taken - (per_epoch - 1) * local.batch", "local.batch"),
    ("fedmpi.engines.batch_plan:draw_batches", "min(n, per_epoch * local.batch)", "n - n % local.batch"),
    ("fedmpi.engines.batch_plan:change_batches", "steps=steps", "steps=local.steps"),
    # what a rank measures and keeps
    ("fedmpi.engines.gradients:compute_gradient", "y, smoothing)", "y)"),
    ("fedmpi.engines.augmentation:draw_changes", "client, AUGMENTATION_STREAM_OFFSET + stream", "client, stream"),
    ("fedmpi.engines.augmentation:draw_changes", "client, AUGMENTATION_STREAM_OFFSET + stream",
     "0, AUGMENTATION_STREAM_OFFSET + stream"),
    ("fedmpi.engines.augmentation:change_images", "masked_fill_(beyond[..., None], 0)", "clone()"),
    ("fedmpi.engines.loop:LoopData.batches", "changes[start:start + together]", "changes[:together]"),
    ("fedmpi.engines.loop:LoopData.with_features", "augmentation=batch_plan.NO_AUGMENTATION", ""),
    # the looped engine
    ("fedmpi.engines.loop:LoopData.batches", "counts[start:start + together]", "counts[:together]"),
    ("fedmpi.engines.loop:LoopData.batches", "at * size:at * size + count], y", "at * count:at * count + count], y"),
    ("fedmpi.engines.step:Step.take", "if options.clip:", "if options.clip and not options.momentum:"),
    ("fedmpi.engines.step:Step.take", "pull.velocity.add_((pull.weights - pull.centre) * pull.factor)", "pass"),
    ("fedmpi.engines.step:Step.take", "part.copy_(values)", "pass"),
    ("fedmpi.engines.step:Step.take", "if self._adapts and gradients", "if self._adapts and self._total is None"),
    ("fedmpi.engines.step:TotalGradient.step", "if now.pulls:", "if False:"),
    ("fedmpi.engines.optimizer:Optimizer.adapt_gradients", 'self.weight_decay and self.name != "adamw"',
     "self.weight_decay"),
    ("fedmpi.engines.optimizer:Moments.step", "self._left.mul_(self._betas)", "self._left.copy_(self._betas)"),
    ("fedmpi.engines.optimizer:shorten_gradients", ".clamp(max=1)", ""),
    ("fedmpi.engines.training_options:WatchedData.scan", "OWN_VECTOR if optimize else OWN_STEPS", "OWN_VECTOR"),
    ("fedmpi.engines.sparse_embedding:SparseRows.take", "self.steps += 1", "self.steps = 1"),
    ("fedmpi.engines.loop:LoopData.id", "if self.number is None", "if not self.number"),
    ("fedmpi.engines.loop:Loop.apply", "(local.seed, local.round, client)", "(local.seed, client)"),
    # what data offers to authors
    ("fedmpi.engines.batch_plan:count_batches", "-(-n // batch)", "n // batch"),
    ("fedmpi.engines.batch_plan:count_batches", "whole + ((whole == 0) & (n > 0))", "whole"),
    ("fedmpi.engines.batch_plan:count_batches", "if not drop_last", "if True"),
    ("fedmpi.engines.batch_plan:get_local_training", "drop_last=t.drop_last", "drop_last=False"),
    ("fedmpi.engines.dry_run:DryRunData.count_samples", "min(self.n, batches * batch)", "self.n"),
    ("fedmpi.engines.cohort:CohortBatch.mean", "found * self.weight.view(-1, *[1] * (found.ndim - 1))",
     "found / len(found)"),
    ("fedmpi.engines.cohort:Cohort.scan", "mover.take(new[:1], k)", "mover.take(new[:1])"),
    ("fedmpi.engines.step:copy_shared", "t.clone() if", "t if"),
    ("fedmpi.engines.cohort:Cohort.class_counts", "y[:n]", "y"),
    ("fedmpi.engines.training_options:WatchedData.note_loss", "self.seen.add(OWN_LOSS)", "pass"),
    # the vectorised engine
    ("fedmpi.engines.vmap:Vmap._tried", "len(chunk) // 2", "len(chunk) - 1"),
    ("fedmpi.engines.vmap:Vmap._fitting", "count_vectors(local.optimizer) * 4", "4"),
    ("fedmpi.engines.cohort:Cohort.plans", "count.clamp_min(1)", "self.local.batch"),
    # states, samples, homes
    ("fedmpi.engines.engine_choice:time_engine", "group.clients[:CLIENTS_TIMED]", "group.clients"),
    ("fedmpi.engines.cohort_steps:CohortSteps.sort_by_steps", "-steps[i]", "steps[i]"),
    ("fedmpi.engines.batch_plan:Portion.shorten", "max(1, ", "max(0, ")]
