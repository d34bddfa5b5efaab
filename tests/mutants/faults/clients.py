"""Faults planted into fedmpi/clients, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # what a rank measures and keeps
    ("fedmpi.clients.evaluation:Evaluator.samples", "self.parts[part]", "self.parts[0]"),
    ("fedmpi.clients.evaluation:Evaluator.samples", '{name}"], samples[f"y_{name}"]', '{name}"], samples["y_test"]'),
    ("fedmpi.clients.partial_sums:PartialSums.distances", "points[j]", "points[0]"),
    ("fedmpi.clients.hosted:HostedClients.train", "measure_after_training(client, mine, up)\n            judges_all",
     "measure_after_training(client, mine, sent)\n            judges_all"),
    ("fedmpi.clients.hosted:HostedClients.train", "self.here), {}, {}",
     "self.here), evaluator.after_training, {}"),
    ("fedmpi.clients.hosted:HostedClients.take_times", "self.seconds = dict.fromkeys(ROUND_PHASES, 0.)", "pass"),
    ("fedmpi.clients.evaluation:Evaluator.measure_clients", "WITHOUT_ADAPTATION)", "AFTER_TRAINING)"),
    ("fedmpi.clients.hosted:HostedClients.apply_in_time", "done < len(clients)", "True"),
    ("fedmpi.clients.hosted:HostedClients.add_message", "torch.from_numpy(scales)", "torch.from_numpy(2 * scales)"),
    ("fedmpi.clients.hosted:HostedClients.training", "classes - 1 - y", "classes - y"),
    # states, samples, homes
    ("fedmpi.clients.state_store:StateStore.read", "self._rows.move_to_end(client)", "pass"),
    ("fedmpi.clients.state_store:Spill.forget", "self.free.append(self.places.pop(client))", "self.places.pop(client)"),
    ("fedmpi.clients.sample_cache:SampleCache.__getitem__", "self._kept.move_to_end(client)", "pass"),
    ("fedmpi.clients.placement:assign_homes", "sizes + FIXED_COST", "sizes"),
    ("fedmpi.clients.placement:Pace.note", "self.hosts, 1", "self.hosts, 0"),
    ("fedmpi.clients.placement:Pace.moves", "saved < MIN_SAVING", "saved < 0"),
    ("fedmpi.clients.measures:macro_f1", "(true + predicted) > 0", "true > 0")]
