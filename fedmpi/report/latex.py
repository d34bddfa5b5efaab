"""A table of results for LaTeX."""
from __future__ import annotations

import re

from fedmpi.report.escapes import escape_latex
from fedmpi.report.tables import UNFINISHED, UNSPLIT, Table


def to_latex(table: Table, caption: str) -> str:
    """Return the table for LaTeX with the package booktabs."""
    widths = [len(table.heads(c)) for c in table.columns]
    heads = [rf"\multicolumn{{{w}}}{{c}}{{{escape_latex(c)}}}" for c, w in zip(table.columns, widths, strict=True)]
    below = [head for c in table.columns for head in table.heads(c)]
    lines = [r"% \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}",
             rf"\begin{{tabular}}{{l{'r' * sum(widths)}}}", r"\toprule", " & " + " & ".join(heads) + r" \\",
             " & " + " & ".join(below) + r" \\", r"\midrule"]
    for row in table.rows:
        # LaTeX would take [ or * at the start of a row for an argument of what precedes it.
        line = ["{}" + escape_latex(row)]
        for c in table.columns:
            shown = [write_math(text) for text in table.texts(row, c)]
            if table.is_best(row, c):
                shown[0] = rf"$\mathbf{{{shown[0].strip('$')}}}$"
            cell = table.cells[row, c]
            marks = (r"$^{*}$" * bool(cell.missing) + r"$^{\dagger}$" * cell.unsplit + r"$^{\ddagger}$" * cell.longer
                     + r"$^{\S}$" * bool(cell.undefined))
            line += [shown[0] + marks, *shown[1:]]
        lines.append(" & ".join(line) + r" \\")
    if table.tau:
        taus = [f"${table.tau[c][0]:.2f}$" if c in table.tau else "" for c in table.columns]
        lines += [r"\midrule", r"Kendall's $\tau$ & " + " & ".join(
            rf"\multicolumn{{{w}}}{{c}}{{{tau}}}" for tau, w in zip(taus, widths, strict=True)) + r" \\"]
    lines += [r"\bottomrule", r"\end{tabular}", *[rf"\par $^{{*}}$ {UNFINISHED}"] * table.incomplete,
              *[rf"\par $^{{\dagger}}$ {UNSPLIT}"] * table.unsplit,
              *[rf"\par {escape_latex(note)}" for note in table.notes()], r"\end{table}"]
    return "\n".join(lines) + "\n"


def write_math(text: str) -> str:
    """Return a number, or `mean ± spread`, for LaTeX's math mode; `-` and what is not a number as plain text."""
    if text == "-":
        return "--"
    if "%" in text:
        return escape_latex(text)
    text = re.sub(r"e\+?(-?)0*(\d+)", r" \\cdot 10^{\1\2}", text)
    return "$" + text.replace("±", r"\pm").replace(",", "{,}") + "$"
