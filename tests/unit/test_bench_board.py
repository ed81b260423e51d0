"""The benchmark's own arithmetic: ratios are taken per repetition, then medianed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.board import Goal, Ref
from bench.store_goals import GOALS

ROOT = Path(__file__).parents[2]


def test_every_goal_of_the_issue_is_judged():
    assert len(GOALS) == 16
    assert all(isinstance(goal, Goal) and isinstance(goal.figure, Ref) for goal in GOALS)


def test_the_benchmark_tells_how_it_is_called():
    done = subprocess.run(
        [sys.executable, "-m", "bench", "store", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--quick" in done.stdout
