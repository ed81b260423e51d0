"""The live view of operators: a stream of what changes, and details on demand."""
