"""What all benchmarks share: driver processes, repetitions, figures and goals."""

from __future__ import annotations
