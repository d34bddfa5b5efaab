"""Of which measures large values are good, which are shares, and how they are scaled for tables."""
from __future__ import annotations

# Of each name in these tuples, endings behind a `_` count, too: `accuracy` stands for `accuracy_mean` as well.
# Error measures, which may be of any size.
ERRORS = ("mse", "mae")
# measures of which the largest value is the best, and those of which the smallest is
BETTER = ("accuracy", "f1", "ari", "purity", "auc", "balanced_accuracy")
COSTS = ("accuracy_std", "accuracy_variance", "accuracy_gini", "calibration_error", "f1_std", "best_round",
         "chosen_round", "rounds", "seconds", "T_comp", "T_comm", "E_comp", "E_comm", "mib", "bytes", "distance",
         "loss", "iterations", "idle", "imbalance", *ERRORS)
# measures that are shares
IN_PERCENT = ("accuracy", "f1", "auc", "balanced_accuracy", "calibration_error")


def find_factor(measure: str) -> int:
    """Return what a measure is multiplied by: shares are shown in percent, and variances of shares in percent squared.
    """
    if is_named(measure, ("accuracy_variance",)):
        return 10_000
    return 100 if is_named(measure, IN_PERCENT) and "_undefined" not in measure else 1


def is_named(measure: str, names: tuple[str, ...]) -> bool:
    """Say whether a measure has one of these names, alone or with an ending: `ari`, but not `arithmetic_error`."""
    return any(measure == name or measure.startswith(f"{name}_") for name in names)
