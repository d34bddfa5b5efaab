"""Hand-written faults, a list per package: `FAULTS = [(qualified name, old, new), ...]`.

The name is `module:definition`, such as `fedmpi.server.rounds:Run.enter`, or `module:` for the whole file. `old` stands
exactly once in the definition's text and is replaced by `new`. The suite must see each of them."""
