"""Benchmark of the runtime. Read: benchmark (cells, goals, tables), ours, baselines."""

from __future__ import annotations
