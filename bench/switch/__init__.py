"""Benchmark of switching sessions. Read: benchmark, workload, oracle, policies, figures.

`workload` and `performer` use the standard library only, because the peer's driver imports them;
`workload` and `oracle` import nothing from hermes, because they judge it.
"""

from __future__ import annotations
