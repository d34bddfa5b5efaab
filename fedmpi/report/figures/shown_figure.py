"""A figure that a notebook shows without pyplot, which would keep every figure of a program."""
from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A Matplotlib figure that says how it looks. IPython knows of others only once pyplot was used."""

    def _repr_png_(self) -> bytes:
        """Return the picture as the bytes of a PNG file."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
