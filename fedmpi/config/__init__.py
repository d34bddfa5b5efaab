"""Settings of a run: what may be set (schema.py), and YAML files as they are read (load.py)."""
