"""What a worker rank does: hold its clients' data and state, and train them with an engine."""
