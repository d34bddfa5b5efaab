"""Personalised and clustered federated learning as an MPI application."""
__version__ = "0.2.0"
