"""C5: many conversations through one process; memory stays bounded and flat.

It runs in a separate process, so that only the runtime is measured. There are many sessions, a
hundred at a time. Idle actors end; the number of agents and the size of transcripts are bounded.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GROWTH = 10.0
PROGRAM = """
import gc, json, os, sys
from pathlib import Path
import trio
from hermes import Config, open_runtime

path, bounded = sys.argv[1], sys.argv[2]
sessions, messages, words = map(int, sys.argv[3:])
closed = built = 0
WORDS = "word " * words


class Agent:
    def __init__(self, spec):
        global built
        built += 1
        self.open = True

    async def run(self, turn):
        from hermes import TurnResult
        return TurnResult(text=f"{turn.turn_id} {WORDS}")

    async def aclose(self):
        global closed
        assert self.open, "closed twice"
        self.open = False
        closed += 1


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def speak(runtime, keys):
    for key in keys:
        for number in range(messages // 2):
            await runtime.ask(key, f"{key} {number} {WORDS}")


async def main():
    limits = Config(max_agents=50, transcript_bytes=2**20, idle_timeout=0.5)
    config = limits if bounded == "bounded" else Config(max_agents=10**6, transcript_bytes=2**40)
    marks = []
    async with open_runtime(path, build_agent=Agent, config=config) as runtime:
        for tenth in range(10):
            keys = [f"k{n}" for n in range(tenth, sessions, 10)]
            async with trio.open_nursery() as nursery:
                for first in range(100):
                    nursery.start_soon(speak, runtime, keys[first::100])
            marks.append(resident())
        statistics = await runtime.admin.statistics()
    print(json.dumps({"marks": marks, "actors": statistics.actors, "built": built,
                      "closed": closed}))


trio.run(main)
"""


def soak(path, sessions, messages, words, bounded="bounded"):
    numbers = map(str, (sessions, messages, words))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), bounded, *numbers],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def growth(figures):
    """Return the growth in the second half, in megabytes."""
    marks = figures["marks"]
    return max(marks[5:]) - max(marks[:5])


def test_memory_stays_bounded_and_flat(path, prove, campaign):
    sessions, messages, words = (10_000, 20, 80) if prove else (1_000, 10, 800)
    figures = soak(path, sessions, messages, words)
    campaign.count(sessions=sessions, messages=sessions * messages)
    report = f"\n{sessions} sessions, {sessions * messages} messages: {figures}\n"
    sys.stdout.write(report)
    assert max(figures["marks"]) < 300
    assert growth(figures) < GROWTH
    assert figures["built"] == figures["closed"] >= sessions
    assert figures["actors"] < sessions


@pytest.mark.mutant
def test_the_measurement_detects_memory_that_is_never_freed(path):
    """Mutant: without bounds, memory grows with every conversation."""
    assert growth(soak(path, 1_000, 10, 800, "unbounded")) > GROWTH
