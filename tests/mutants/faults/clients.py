"""Faults planted into fedmpi/clients, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

MEASURES = "fedmpi.clients.measures:"

FAULTS: list[tuple[str, str, str]] = [
    # what a rank measures and keeps
    ("fedmpi.clients.evaluation:Evaluator.get_samples", "self.parts[part]", "self.parts[0]"),
    ("fedmpi.clients.evaluation:Evaluator.get_samples", '{name}"], samples[f"y_{name}"]',
     '{name}"], samples["y_test"]'),
    ("fedmpi.clients.partial_sums:PartialSums.measure_distances", "points[j]", "points[0]"),
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
    ("fedmpi.clients.placement:Pace.record", "self.hosts, 1", "self.hosts, 0"),
    ("fedmpi.clients.placement:Pace.plan_moves", "saved < MIN_SAVING", "saved < 0"),
    ("fedmpi.clients.measures:compute_macro_f1", "(true + predicted) > 0", "true > 0"),
    # new clients
    ("fedmpi.clients.newcomers:list_newcomers", "len(homes) + i", "i"),
    ("fedmpi.clients.newcomers:list_newcomers", "i % len(hosts)", "0"),
    ("fedmpi.clients.newcomers:refuse_newcomers", "if not method.serves_newcomers", "if False"),
    ("fedmpi.clients.evaluation:Evaluator.measure_clients", "hosted.newcomers, hosted.shared, when)",
     "hosted.newcomers, hosted.shared, when, JUDGED)"),
    ("fedmpi.clients.evaluation:Evaluator.measure_clients", "hosted.hooks.serve_newcomer, hosted",
     "hosted.hooks.personal, hosted"),
    # further measures
    (MEASURES + "compute_auc", "(below + up_to).sum()", "(2 * below).sum()"),
    (MEASURES + "compute_auc", "len(classes) < 2", "len(classes) < 3"),
    (MEASURES + "compute_auc", "for label in classes:", "for label in range(logits.shape[1]):"),
    (MEASURES + "compute_auc", " or not probabilities.isfinite().all()", ""),
    (MEASURES + "compute_auc", "logits.double().softmax(1)", "logits.double()"),
    (MEASURES + "compute_balanced_accuracy",
     "float(torch.stack([right[y == label].mean() for label in y.unique()]).mean())", "float(right.mean())"),
    (MEASURES, "CONFIDENCE_BINS = 15", "CONFIDENCE_BINS = 10"),
    (MEASURES + "compute_calibration_error", "right=True", "right=False"),
    (MEASURES + "compute_calibration_error", "np.abs(gaps).sum()", "abs(gaps.sum())"),
    (MEASURES + "measure_by_own_code", "logits.clone(), y.clone()", "logits, y"),
    ("fedmpi.clients.evaluation:Evaluator._measure_together", "logits[:len(labels)]", "logits"),
    ("fedmpi.clients.evaluation:Evaluator.measure_now", "[np.nan] * len(self.measures)", "[0.] * len(self.measures)"),
    ("fedmpi.clients.returned:refuse_other_state", " or dtypes and value.dtype != first.dtype", ""),
    ("fedmpi.clients.hooks:Hooks.__init__", "not is_built_in(type(method))", "False"),
    ("fedmpi.clients.hooks:Hooks.client", "sent, self.up,", "sent, sent,"),
    ("fedmpi.clients.hooks:Hooks.predict", "len(x), self.outputs)):", "len(x), found.shape[-1])):"),
    ("fedmpi.clients.hooks:Hooks._check_state", "found, self.mine,", "found, found,"),
    ("fedmpi.clients.returned:refuse_wrong_messages", "shape != tuple(like.shape) or ", ""),
    ("fedmpi.clients.returned:refuse_wrong_messages", "mixed.dtype != like.dtype", "False"),
    ("fedmpi.clients.hooks:Hooks.server", "error=FedmpiError", "error=Exception"),
]
