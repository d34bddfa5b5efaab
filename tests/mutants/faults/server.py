"""Faults of fedmpi/server, each of which some test sees."""
from __future__ import annotations

ROUNDS = "fedmpi.server.rounds:"
RUN = ROUNDS + "Run."
SAVING = "fedmpi.server.saving:CheckpointWriter."
BOOKS = "fedmpi.server.books:Books."
CLUSTERING = "fedmpi.clustering.kmeans_and_linkage:"
METRICS = "fedmpi.server.metrics:"
SELECTION = "fedmpi.server.selection:"
FAULTY = "fedmpi.faults:"
COST = "fedmpi.server.round_cost:"
SIMILARITY = "fedmpi.clustering.low_rank:"
CAM = "fedmpi.methods._cam:CAM."
PARTICIPATION = "fedmpi.server.sampling:"

FAULTS: list[tuple[str, str, str]] = [
    (SAVING + "is_due", "60 * minutes", "minutes"),
    (SAVING + "is_due", "and not self.slowest_s", "and self.slowest_s"),
    (SAVING + "is_due", "> 60 * minutes", ">= 60 * minutes"),
    (SAVING + "save", "        self.folder.save_history()\n", ""),
    (SAVING + "save", "max(self.slowest_s, time.perf_counter() - begin)", "time.perf_counter() - begin"),
    (SAVING + "save", "        self.last_begun = begin\n", ""),
    (SAVING + "save", "state.groups.last.tolist()", "[-1] * len(state.groups.last)"),
    (SAVING + "save", "for n, v in state.groups.each.items()}}", "for name, values in ()}}"),
    (SAVING + "save", "state.accuracy(),\n            state.metrics", "state.accuracy(), state.metrics[:-1]"),
    (SAVING + "restore", "snapshot.books[\"seconds\"], StepTotals", "0., StepTotals"),
    (SAVING + "restore", "StepTotals.of(snapshot.books.get(\"steps\"))", "StepTotals()"),
    ("fedmpi.server.step_totals:StepTotals.note", "counts[PARTICIPANTS] + counts[OTHERS]", "counts[PARTICIPANTS]"),
    ("fedmpi.server.step_totals:StepTotals.note", "(self.totals + judged)", "self.totals"),
    ("fedmpi.server.step_totals:StepTotals.note", "max(1, trained)", "clients"),
    (SAVING + "restore", "snapshot.round, snapshot.metrics", "snapshot.round, []"),
    (SELECTION + "series", "lines[-10:]", "lines[:10]"),
    (SELECTION + "series", "best[\"round\"]", "lines[-1][\"round\"]"),
    (SELECTION + "series", "np.fmax.reduce", "np.maximum.reduce"),
    ("fedmpi.server.selection:series", "line := best_validation_line(lines)", "line := best"),
    ("fedmpi.server.selection:best_validation_line", "max(known,", "max(known[::-1],"),
    ("fedmpi.server.selection:best_validation_line", "and line[measure] == line[measure]", ""),
    (SELECTION + "early_end", "% config.evaluate.every == 0", ">= 0"),
    (SELECTION + "early_end", "< patience", "<= patience"),
    (SELECTION + "early_end", "or now >= config.rounds", ""),
    ("fedmpi.server.selection:refuse_selection", "counts[honest, 1]", "counts[:, 1]"),
    (SAVING + "is_due", "or over", "or done == self.config.rounds"),
    (BOOKS + "result", "\"rounds\": self.state.round", "\"rounds\": len(lines)"),
    (METRICS + "best_of", "max(metrics,", "max(metrics[::-1],"),
    (METRICS + "best_of", "m[\"accuracy_mean\"] == m[\"accuracy_mean\"]", "True"),
    ("fedmpi.server.metrics:metrics_line", "summarise_clients(values[honest])", "summarise_clients(values)"),
    ("fedmpi.server.metrics:metrics_line", "[~honest]", "[honest]"),
    ("fedmpi.server.metrics:history_columns", "values[:, 0] / values[:, 1]", 'rows[""][:, 0] / rows[""][:, 1]'),
    ("fedmpi.server.metrics:history_columns", 'rows[""][:, 2] / rows[""][:, 1]', 'rows[""][:, 2]'),
    ("fedmpi.server.metrics:history_columns", 'rows[""][:, 3]', 'rows["_after"][:, 3]'),
    (METRICS, "\"_after\", \"_unadapted\"", "\"_unadapted\", \"_after\""),
    (METRICS + "Groups.update", "self.last[known], minlength", "labels, minlength"),
    (BOOKS + "enter", "        self.columns = {}", "        pass"),
    (BOOKS + "enter", "**state.groups.each} | self.columns", "**state.groups.each}"),
    (RUN + "go", "            if not self.over:\n", "            if True:\n"),
    (RUN + "go", "        if state.round == 0:\n            self.warm_up()", "        self.warm_up()"),
    (RUN + "go", "                return False\n", ""),
    (RUN + "reason_to_stop", "self.stopping() or self.pool.stop_requested", "self.stopping()"),
    (RUN + "reason_to_stop", "return \"asked to stop\" if self.stopping() or self.pool.stop_requested else late",
     "return late or \"asked to stop\" * (self.stopping() or self.pool.stop_requested)"),
    (RUN + "evaluates", "(t + 1) % every == 0", "t % every == 0"),
    (RUN + "evaluates", "t + 1 == self.config.rounds or ", ""),
    (RUN + "evaluates", "or t + 1 in", "or t in"),
    (RUN + "one_round", "self.config.rounds - t", "self.config.rounds"),
    (RUN + "one_round", "world.sent - sent", "world.sent"),
    (RUN + "one_round", "state.seconds += time", "state.seconds = time"),
    (BOOKS + "describe_round", "np.isin(asked.ids, trained.ids)", "np.isin(asked.ids, who.ids)"),
    (BOOKS + "describe_round", "len(asked.ids)", "len(who.ids)"),
    (BOOKS + "describe_round", "missing(asked, trained, who)", "missing(asked, who, who)"),
    (BOOKS + "describe_round", "dict(who.facts)", "who.facts"),
    (BOOKS + "describe_round", "/ round_cost.MIB", "/ 10**6"),
    (BOOKS + "_edge_costs", "self.columns |= ", "self.columns = self.columns or "),
    (BOOKS + "_column", "np.nan, values.dtype", "0, values.dtype"),
    (RUN + "move_clients", "return len(moves[0])", "return len(moves)"),
    (BOOKS + "show_round", "total - state.round", "total - state.round + 1"),
    (BOOKS + "show_round", "best_of(lines)", "lines[0]"),
    (SAVING + "pieces", "start + at_once]", "start + at_once - 1]"),
    (RUN + "warm_up", "self.federation.sizes[ids], -1", "self.federation.sizes[ids], 0"),
    (PARTICIPATION + "participants", "round(share * n)", "int(share * n)"),
    (PARTICIPATION + "participants", "max(1,", "max(2,"),
    ("fedmpi.server.sampling:participants",
     "(config.seed, t, PARTICIPANTS_STREAM)",
     "(config.seed, t % 256, PARTICIPANTS_STREAM)"),
    (PARTICIPATION + "addressed", "not judge or", "not judge and"),
    ("fedmpi.server.round_cost:batches_per_pass",
     "-(-np.asarray(sizes) // train.batch)",
     "np.asarray(sizes) // train.batch"),
    (METRICS + "worst_decile", "np.ceil", "np.floor"),
    ("fedmpi.server.metrics:summarise_clients", "(loss / tested).mean()", "(loss.sum() / tested.sum())"),
    (METRICS + "Groups.update", "        self.last[ids] = labels\n", ""),
    (METRICS + "Groups.update", "bincount(labels, minlength=k", "bincount(labels, minlength=1"),
    (METRICS + "Groups.note", "self.planted == g", "self.planted != g"),
    (METRICS + "pictured", ".flip(1)", ""),
    # what is told and counted
    ("fedmpi.server.on_disk_error:Storage.facts", "sorted(set(self.refused))", "self.refused")]
