"""How hosted clients are trained: one after another (loop), or many at once (vmap)."""
