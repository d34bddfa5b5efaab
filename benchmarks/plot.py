"""Draw a benchmark's figures: seconds or rates on the left, the ratio on the right."""
from __future__ import annotations

from itertools import cycle
from pathlib import Path

from fedmpi import registry


def plot(found: dict, path: str | Path) -> None:
    """Draw the rows of a benchmark as PNG, SVG or PDF; the ending of the path decides."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = found["rows"]
    if "similarity" in rows[0]:
        compare(pyplot, found, path)
        return
    if "who" in rows[0]:
        race(pyplot, found, path)
        return
    if "method" in rows[0]:
        bars(pyplot, found, path)
        return
    # None: repeats
    across = "clients" if "clients" in rows[0] else None
    x = [row[across] for row in rows] if across else list(range(1, len(rows) + 1))
    seconds = [k for k in rows[0] if k.endswith("seconds") or k.startswith(("round_", "step_"))]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, marker in zip(seconds, cycle("osv^D*")):
        left.plot(x, [row[name] for row in rows], marker=marker, label=name.replace("_", " "))
    left.set(ylabel=found.get("unit", "seconds"), ylim=(0, None))
    left.legend(frameon=False)
    if "ratio" in rows[0]:
        right.plot(x, [row["ratio"] for row in rows], "ko-")
        right.axhline(found["ratio"], color="grey", linestyle="--", label=f"median {found['ratio']:.3f}")
        right.legend(frameon=False)
    else:
        right.plot(x, [row["milliseconds_per_client"] for row in rows], "ko-")
    right.set(ylabel="ratio" if "ratio" in rows[0] else "milliseconds per client", ylim=(0, None))
    for axes in (left, right):
        axes.set_xlabel(across or "repeat")
        if across:
            axes.set_xscale("log")
    figure.suptitle(f"fedmpi benchmark {found['benchmark']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def compare(pyplot, found: dict, path: str | Path) -> None:
    """Draw seconds, multiply-adds and bytes over clients, one line per similarity; zeros are left out."""
    figure, three = pyplot.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    labels = {"seconds": "server's seconds", "multiply_adds": "server's multiply-adds",
              "moved_mib": "MiB down and up, all clients"}
    for name, marker in zip(dict.fromkeys(row["similarity"] for row in found["rows"]), cycle("osv^D*")):
        rows = [row for row in found["rows"] if row["similarity"] == name]
        title = f"{name} ({registry.find_class('methods', rows[0]['method']).title})"
        for axes, (key, label) in zip(three, labels.items(), strict=True):
            axes.plot([row["clients"] for row in rows], [row[key] or float("nan") for row in rows], marker=marker,
                      label=title)
            axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=label)
    three[2].legend(frameon=False, fontsize=8)
    figure.suptitle(f"fedmpi benchmark {found['benchmark']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def race(pyplot, found: dict, path: str | Path) -> None:
    """Draw a bar for each engine and framework: its seconds over those of the bare loop."""
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axes.bar_label(axes.bar([row["who"] for row in found["rows"]], [row["ratio"] for row in found["rows"]]), fmt="%.2f")
    axes.axhline(1, color="grey", linestyle="--")
    axes.set(ylabel="seconds a round / bare loop's", title=f"fedmpi benchmark {found['benchmark']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def bars(pyplot, found: dict, path: str | Path) -> None:
    """Draw the figures of each column, one bar per method."""
    columns = [name for name in found["rows"][0] if name != "method"]
    figure, several = pyplot.subplots(1, len(columns), figsize=(3 * len(columns), 3.2), layout="constrained",
                                      squeeze=False)
    for axes, column in zip(several[0], columns, strict=True):
        axes.barh([row["method"] for row in found["rows"]], [row[column] for row in found["rows"]])
        axes.set(title=column, xlabel=found["unit"])
        axes.invert_yaxis()
    figure.suptitle(f"fedmpi benchmark {found['benchmark']}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
