"""Benchmark of the store. Read: benchmark (cells, goals, tables), ours, baselines."""

from __future__ import annotations
