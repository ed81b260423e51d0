"""Prompts that a JSON-RPC client sends again to a bot that is killed repeatedly.

The program is in `tests/support/jsonrpc_kills.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = 3
ALL_SEEDS = 20


def pytest_generate_tests(metafunc):
    seeds = range(ALL_SEEDS if metafunc.config.getoption("--prove") else SEEDS)
    metafunc.parametrize("seed", seeds)


@pytest.fixture
def kills(prove):
    return 40 if prove else 6


def test_a_prompt_that_is_sent_again_runs_once_and_none_is_lost(path, seed, kills):
    """To replay it: `python -m tests.support.jsonrpc_kills FILE KILLS SEED`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.jsonrpc_kills", str(path), str(kills), str(seed)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=1800,
    )
    seen = json.loads(done.stdout)
    assert seen["violations"] == []
    assert seen["complete"] > 0
    assert seen["repeated"] >= seen["prompts"]
