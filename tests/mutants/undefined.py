"""Find names that a Python file uses and does not define: a planted fault with one fails by NameError in any test."""
from __future__ import annotations

import builtins
import symtable

# what the interpreter itself puts into every module
OF_MODULES = {"__name__", "__file__", "__doc__", "__package__", "__path__", "__spec__", "__annotations__"}


def list_undefined(text: str) -> set[str]:
    """Return the global names that the code refers to, and that neither it nor Python defines."""
    module = symtable.symtable(text, "the file", "exec")
    defined = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    used, tables = set(), [module]
    for table in tables:
        tables += table.get_children()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or table is module)}
    return {name for name in used - defined - OF_MODULES if not hasattr(builtins, name)}
