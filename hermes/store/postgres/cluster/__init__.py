"""A runtime as one of the nodes that share a database."""
