"""What a worker rank does: it holds its clients' samples and states, trains the clients with an engine and measures
their models."""
