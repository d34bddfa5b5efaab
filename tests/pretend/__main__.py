"""`python -m tests.pretend` prints the table of counts.py anew."""
from tests.methods.table import NAMES
from tests.pretend.runs import driven

for name in NAMES:
    for how in ("loop", "vmap", "graphs"):
        print(f'    ("{name}", "{how}"): {driven(name, how).counts},')
