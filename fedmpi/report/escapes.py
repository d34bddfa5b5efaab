"""Names as they are written in Markdown and in LaTeX."""
from __future__ import annotations

# Without its package fontenc, LaTeX shows <, > and | as inverted marks and a dash.
LATEX_COMMANDS = {**{character: f"\\{character}" for character in "#$%&_{}"},
                  "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
                  "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$",
                  "‡": r"$^{\ddagger}$", "§": r"$^{\S}$"}


def escape_markdown(text: str) -> str:
    """Return a text for Markdown, a cell of a table or another line, in one line that shows tags as they are written.
    """
    return text.replace("\n", " ").replace("|", r"\|").replace("<", "&lt;")


def escape_latex(text: str) -> str:
    """Return a text for LaTeX."""
    return "".join(LATEX_COMMANDS.get(character, character) for character in text)
