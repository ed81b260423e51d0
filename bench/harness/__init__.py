"""What all benchmarks share: driver processes, repetitions, figures and goals.

Drivers in the peers' environments import `protocol`, `timing` and `sample_text`, so these use the
standard library only.
"""

from __future__ import annotations
