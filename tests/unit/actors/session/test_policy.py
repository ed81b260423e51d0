"""`decide`: what happens to input, for every mode, setting and state."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from hermes.actors.commands import CommandMode
from hermes.actors.session.policy import decide
from hermes.messages import WhenBusy

ANY = get_args(WhenBusy)
CASES = list(product(get_args(CommandMode), ANY))
WHILE_RUNNING = {
    "now": dict.fromkeys(ANY, "concurrent"),
    "stops": dict.fromkeys(ANY, "interrupt"),
    "waits": dict.fromkeys(ANY, "queue"),
    "steers": dict.fromkeys(ANY, "steer"),
    "message": {each: each for each in ANY},
}


@pytest.mark.parametrize(("mode", "when_busy"), CASES)
def test_input_during_a_turn(mode, when_busy):
    assert decide(when_busy, mode, running=True) == WHILE_RUNNING[mode][when_busy]


@pytest.mark.parametrize(("mode", "when_busy"), CASES)
def test_input_between_turns_is_queued_unless_it_runs_concurrently(mode, when_busy):
    expected = "concurrent" if mode == "now" else "queue"
    assert decide(when_busy, mode, running=False) == expected
