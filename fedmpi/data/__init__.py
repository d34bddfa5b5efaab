"""Load the samples, divide them among the clients, and keep the result in a file."""
