"""Chains of fused multiply-adds, several rows in one pass over memory, where Numba is installed: PyTorch goes through
memory three times for each row, which takes five times as long. The bits are the same."""
from __future__ import annotations

from functools import cache

import numpy as np
import torch

ROWS_PER_CALL = 4             # at once: each element of a sum is read and written once for so many
MIN_CONTRIBUTIONS = 1 << 23      # contributions of a sum for which the kernel is compiled, which takes half a second


def kernel(rows: list[torch.Tensor]):
    """Return `chain` of the function below for a sum of such rows, or None where it cannot be had or is not worth it.

    Rows of other types than float32, and those of a GPU, are PyTorch's."""
    if sum(row.numel() for row in rows) < MIN_CONTRIBUTIONS or not all(fits(row) for row in rows):
        return None
    return compiled()


def fits(row: torch.Tensor) -> bool:
    return row.dtype == torch.float32 and row.device.type == "cpu" and row.is_contiguous()


@cache
def compiled():
    """Return chain(total, values, weights), which adds weights[r] * values[r] to total (n,) for r = 0, 1, ... in turn,
    each with one rounding. values: at most ROWS vectors (n,) float32; total float64.

    None without a Numba that works, or where the processor has no such instruction: nothing depends on it but time."""
    try:
        four = compiled_four()
    except Exception:      # of a Numba that is not there, knows not this NumPy, finds not its libraries, ...
        return None

    def chain(total, values, weights):
        missing = ROWS_PER_CALL - len(values)      # 0 times anything finite adds nothing
        arrays = [value.numpy() for value in values]
        four(total.numpy(), *arrays, *arrays[:1] * missing, *weights, *[0.] * missing)

    return chain if chain_fuses(chain, torch.device("cpu")) else None


def compiled_four():
    from numba import njit

    @njit("void(f8[::1], f4[::1], f4[::1], f4[::1], f4[::1], f8, f8, f8, f8)", fastmath={"contract"}, nogil=True)
    def four(total, a, b, c, d, u, v, w, x):
        for i in range(total.size):
            t = total[i] + u * np.float64(a[i])
            t = t + v * np.float64(b[i])
            t = t + w * np.float64(c[i])
            total[i] = t + x * np.float64(d[i])
    return four


def chain_fuses(chain, device: torch.device) -> bool:
    """Say whether each addition of a chain, called as `compiled` says, has one rounding on a device, in vectors and in
    what is left over."""
    value, weight = 1 + 2. ** -23, 1 + 2. ** -52
    for n in (1, 67):
        for place in range(ROWS_PER_CALL):
            total = torch.full((n,), -value, dtype=torch.float64, device=device)
            weights = [weight if r == place else 0. for r in range(ROWS_PER_CALL)]
            chain(total, [torch.full((n,), value, device=device)] * ROWS_PER_CALL, weights)
            if not (total == 2. ** -52 + 2. ** -75).all():      # the last is lost if rounded twice
                return False
    return True
