"""What a worker rank does: hold its clients' data and state, train them with an engine, evaluate them."""
