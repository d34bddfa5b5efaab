"""Networks, and the one flat vector that holds a network's parameters."""
