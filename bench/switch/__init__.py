"""Benchmark of switching sessions. Read: benchmark, workload, oracle, policies, figures."""

from __future__ import annotations
