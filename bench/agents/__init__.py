"""Benchmark of agents with a model over HTTP. Read: benchmark, ours, model."""

from __future__ import annotations
