"""Clients that go away at random moments: nothing is lost, run twice or left behind."""

from __future__ import annotations

import trio

from tests.support.disconnects import run_storm


async def test_lost_connections_leave_one_turn_for_each_message_and_nothing_else(path, caplog):
    with trio.fail_after(60):
        storm = await run_storm(path, 50, seed=1)
    assert storm.violations == []
    assert storm.size["attempts"] > 100
    assert storm.size["answers"] > 40
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
