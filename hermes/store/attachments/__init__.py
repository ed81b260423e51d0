"""Attached files: their rows and references, and the sweep of those that nothing names."""
