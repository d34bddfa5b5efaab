"""Faults planted into fedmpi/clients, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # streams and draws
    ("fedmpi.clients.plan:noise", "NOISE + stream", "stream"),
    ("fedmpi.clients.plan:generate", "when % 2 ** 32", "when % 256"),
    ("fedmpi.clients.plan:subset", "ALWAYS if fixed else local.round", "local.round"),
    ("fedmpi.clients.plan:subset", "share * n + 1e-9", "share * n"),
    ("fedmpi.clients.plan:draw", "n - (per_epoch - 1) * local.batch", "local.batch"),
    ("fedmpi.clients.plan:passes", "steps=steps", "steps=local.steps"),
    # the looped engine
    ("fedmpi.clients.loop:LoopData.batches", "counts[start:start + together]", "counts[:together]"),
    ("fedmpi.clients.loop:LoopData.batches", "at * size:at * size + count], y", "at * count:at * count + count], y"),
    ("fedmpi.clients.loop:LoopData.descend", "            if clip:", "            if clip and not momentum:"),
    ("fedmpi.clients.loop:LoopData.descend", "velocity[block].add_((work[block] - centre) * strength)", "pass"),
    ("fedmpi.clients.loop:LoopData.id", "if self.number is None", "if not self.number"),
    ("fedmpi.clients.loop:Loop.apply", "(local.seed, local.round, client)", "(local.seed, client)"),
    # the vectorised engine
    ("fedmpi.clients.vmap:Vmap._tried", "len(chunk) // 2", "len(chunk) - 1"),
    ("fedmpi.clients.vmap:Vmap._fitting", "VECTORS * 4", "4"),
    ("fedmpi.clients.cohort:Cohort.plans", "count.clamp_min(1)", "self.local.batch"),
    # what a rank measures and keeps
    ("fedmpi.clients.judging:Judge.samples", "self.parts[part]", "self.parts[0]"),
    ("fedmpi.clients.judging:Judge.samples", '{name}"], mine[f"y_{name}"]', '{name}"], mine["y_test"]'),
    ("fedmpi.clients.group:Group.distances", "centres[j]", "centres[0]"),
    ("fedmpi.clients.group:Group.train", "self._judge_fresh(client, mine, up)\n        judges_all",
     "self._judge_fresh(client, mine, sent)\n        judges_all"),
    ("fedmpi.clients.group:Group.train", "dict.fromkeys(ids), {}, {}", "dict.fromkeys(ids), self.fresh, {}"),
    ("fedmpi.clients.group:Group.times", "self.seconds = dict.fromkeys(PHASES, 0.)", "pass"),
    ("fedmpi.clients.plan:of_round", "max(0, when)", "when"),
    ("fedmpi.clients.group:Group.judge", "found, (client, 2)", "found, (client, 1)"),
    ("fedmpi.clients.group:Group.in_time", "done < len(clients)", "True"),
    ("fedmpi.clients.group:Group.note", "totals.double()", "totals.float() * 2"),
    ("fedmpi.clients.group:Group.training", "classes - 1 - y", "classes - y"),
    # states, samples, homes
    ("fedmpi.clients.store:Store.read", "self._rows.move_to_end(client)", "pass"),
    ("fedmpi.clients.store:Spill.forget", "self.free.append(self.places.pop(client))", "self.places.pop(client)"),
    ("fedmpi.clients.shelf:Shelf.__getitem__", "self._kept.move_to_end(client)", "pass"),
    ("fedmpi.clients.placement:homes", "sizes + FIXED", "sizes"),
    ("fedmpi.clients.placement:Pace.note", "self.hosts, 1", "self.hosts, 0"),
    ("fedmpi.clients.placement:Pace.moves", "saved < TRIFLE", "saved < 0"),
    ("fedmpi.clients.choice:timed", "group.clients[:PROBES]", "group.clients")]
