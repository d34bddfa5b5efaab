"""Faults planted into fedmpi/clients, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # what a rank measures and keeps
    ("fedmpi.clients.evaluation:Judge.samples", "self.parts[part]", "self.parts[0]"),
    ("fedmpi.clients.evaluation:Judge.samples", '{name}"], mine[f"y_{name}"]', '{name}"], mine["y_test"]'),
    ("fedmpi.clients.hosted:HostedClients.distances", "centres[j]", "centres[0]"),
    ("fedmpi.clients.hosted:HostedClients.train", "self._judge_fresh(client, mine, up)\n        judges_all",
     "self._judge_fresh(client, mine, sent)\n        judges_all"),
    ("fedmpi.clients.hosted:HostedClients.train", "dict.fromkeys(ids), {}, {}", "dict.fromkeys(ids), self.fresh, {}"),
    ("fedmpi.clients.hosted:HostedClients.times", "self.seconds = dict.fromkeys(ROUND_PHASES, 0.)", "pass"),
    ("fedmpi.clients.hosted:HostedClients.judge", "found, (client, 2)", "found, (client, 1)"),
    ("fedmpi.clients.hosted:HostedClients.in_time", "done < len(clients)", "True"),
    ("fedmpi.clients.hosted:HostedClients.add_message", "torch.from_numpy(scales)", "torch.from_numpy(2 * scales)"),
    ("fedmpi.clients.hosted:HostedClients.training", "classes - 1 - y", "classes - y"),
    # states, samples, homes
    ("fedmpi.clients.state_store:StateStore.read", "self._rows.move_to_end(client)", "pass"),
    ("fedmpi.clients.state_store:Spill.forget", "self.free.append(self.places.pop(client))", "self.places.pop(client)"),
    ("fedmpi.clients.sample_cache:SampleCache.__getitem__", "self._kept.move_to_end(client)", "pass"),
    ("fedmpi.clients.placement:homes", "sizes + FIXED", "sizes"),
    ("fedmpi.clients.placement:Pace.note", "self.hosts, 1", "self.hosts, 0"),
    ("fedmpi.clients.placement:Pace.moves", "saved < TRIFLE", "saved < 0"),
    ("fedmpi.clients.measures:macro_f1", "(true + predicted) > 0", "true > 0")]
