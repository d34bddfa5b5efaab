"""The user's own modules: what they consist of, and where they failed."""
