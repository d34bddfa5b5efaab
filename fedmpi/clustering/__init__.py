"""Clustering and similarity of rows: pure algorithms, which methods call at rank 0."""
