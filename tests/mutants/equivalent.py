"""Mutants that no test can or should see. They are left out of the rate, and listed in the report."""
from __future__ import annotations

# (qualified name of the definition, its line before, the line after, why nobody could see the difference)
EQUIVALENT: list[tuple[str, str, str, str]] = [
    ("fedmpi.methods.per_fedavg:PerFedAvg.personal",
     "return batch.descend(self.model, shared.w, lr=self.rate(self.alpha, data), momentum=0.)",
     "return batch.descend(self.model, shared.w, lr=self.rate(self.alpha, data), momentum=1.0)",
     "it is a single step, whose velocity is the gradient whatever the momentum"),
    ("fedmpi.engines.loop_data:LoopData.batches",
     "together = max(1, GATHER // max(1, 4 * self.x[0].numel() * size))",
     "together = max(1, GATHER // max(1, 3 * self.x[0].numel() * size))",
     "how many batches are gathered at once changes none of them"),
    ("fedmpi.comm.robust:trim_mean_by",
     "width = max(1, NUMBERS_AT_ONCE // max(1, len(ranks)))",
     "width = max(1, NUMBERS_AT_ONCE // max(2, len(ranks)))",
     "how many columns are taken at once changes none of them"),
    ("fedmpi.methods.fesem:FeSEM.client",
     "share = torch.where(shared.n > 0, data.n / shared.n.clamp(min=1), 1.)",
     "share = torch.where(shared.n > 0, data.n / shared.n.clamp(min=0), 1.)",
     "where n is 0 the other branch counts"),
    ("fedmpi.methods.fedsr:FedSR.predict",
     "return self.net(w[:self.net.size], x)",
     "return self.net(w[:(self.net.size) + 1], x)",
     "a network reads as many numbers as it has"),
    ("fedmpi.report.figures.clusters:draw_by_round",
     "drawn += 1",
     "drawn -= 1",
     "only whether it is 0 counts"),
    ("fedmpi.storage.lock:read_holder",
     "with suppress(FileNotFoundError, ValueError, TypeError, RecursionError):",
     "with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):",
     "the order of the errors means nothing"),
    ("fedmpi.sweeps.board:Board.__init__",
     "self.live = Live(auto_refresh=False)",
     "self.live = Live(auto_refresh=True)",
     "a thread would draw the same table again"),
]

# (qualified name of a definition, or `module:` for all of it, why no test on a plain machine can run it)
ELSEWHERE: list[tuple[str, str]] = []


def reason(name: str, old: str, new: str) -> str:
    """Return why a mutant does not count, or ""."""
    for where, before, after, why in EQUIVALENT:
        if (where, before, after) == (name, old, new):
            return why
    for where, why in ELSEWHERE:
        if name == where or name.startswith(where if where.endswith(":") else where + "."):
            return why
    return ""
