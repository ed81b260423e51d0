"""Helpers that several tests share, one module for each subject."""
