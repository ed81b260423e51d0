"""How hermes-agent is made to do a script, as far as it can be told without it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from bench import workload
from bench.peers.hermes_switch import lost, parts
from bench.workload import Compress, Restart, Turn, Write


def test_a_script_is_parted_where_the_process_is_started_anew():
    steps = [Turn(0, 0, 0), Restart(), Turn(0, 0, 1), Compress(0, 0, 1), Restart(), Turn(0, 0, 2)]
    assert [steps[start:end] for start, end in parts(steps)] == [steps[:1], steps[2:4], steps[5:]]


def test_what_is_in_no_row_is_lost(tmp_path):
    steps = [Turn(0, 0, 0), Turn(0, 0, 1, "w1", mark=2), Write(0, 0, 7)]
    stored = [steps[0].text, workload.answer(0), steps[1].text, workload.written(7)[1], None]
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection, connection:
        connection.execute("CREATE TABLE messages (content TEXT)")
        connection.executemany("INSERT INTO messages VALUES (?)", [(text,) for text in stored])
    gone = ["elsewhere 2", "replied 2", "found 1", "answer 1", "elsewhere 7"]
    assert lost(tmp_path / "state.db", steps) == gone
