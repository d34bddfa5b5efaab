"""Mutants that no test can or should see. They are left out of the rate, and listed in the report."""
from __future__ import annotations

# (qualified name of the definition, its line before, the line after, why nobody could see the difference)
EQUIVALENT: list[tuple[str, str, str, str]] = [
    ("fedmpi.methods.per_fedavg:PerFedAvg.personal",
     "return batch.descend(self.model, shared.w, lr=self.rate(self.alpha, data), momentum=0.)",
     "return batch.descend(self.model, shared.w, lr=self.rate(self.alpha, data), momentum=1.0)",
     "it is a single step, whose velocity is the gradient whatever the momentum"),
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
