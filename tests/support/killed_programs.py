"""Programs with a runtime that are killed at a certain point."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engines import Sql

ROOT = Path(__file__).parents[2]
PREAMBLE = """
import faulthandler, os, sys
import trio
from hermes import Config, Inbound, Source, TurnResult, open_runtime

path = sys.argv[1]
faulthandler.dump_traceback_later(25, exit=True)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def hang(turn):
    say("turn", turn.turn_id, turn.text)
    await trio.sleep_forever()

async def echo(turn):
    return f"echo: {turn.text}"

class Stuck:
    platform = "memory"
    local = True
    def __init__(self, good=0):
        self.left = good
    async def send(self, row):
        say("sending", row.outbox_id, row.body["text"])
        self.left -= 1
        if self.left < 0:
            await trio.sleep_forever()

def chat(name):
    return Source("memory", chat_id=name)

"""
"""Defines what the programs use; `say` prints a line."""

IN_TURN = """
async def main():
    async with open_runtime(path, agent=hang) as runtime:
        await runtime.ask("k", "one", event_id="e1")

trio.run(main)
"""
"""A program that prints "turn 1 one" in its first turn, and hangs."""


def start_program(path, body):
    """Start a program on the file at `path`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PREAMBLE + body, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_until_killed(path, body, last):
    """Kill a program as soon as it prints the line `last`. Returns all lines that it printed."""
    lines = []
    with start_program(path, body) as child:
        for line in child.stdout:
            lines.append(line.strip())
            if lines[-1] == last:
                break
        else:
            pytest.fail(f"it never printed {last!r}: {child.stderr.read()}")
        child.kill()
    assert child.returncode == -signal.SIGKILL
    return lines


def table_rows(path, columns, table="inbox"):
    """Return columns of all rows of a table, oldest first."""
    with Sql(path) as sql:
        return [tuple(row) for row in sql(f"SELECT {columns} FROM {table} ORDER BY id")]
