"""Inbound messages."""

from __future__ import annotations

import pytest

from hermes.messages import Inbound


@pytest.mark.parametrize(
    ("event_id", "number"),
    [
        ("approval:12", 12),
        ("approval:", None),
        ("approval:x", None),
        ("approval:12 ", None),
        ("approval:１２", None),
        (f"approval:{'9' * 5000}", None),
        ("12", None),
    ],
)
def test_the_id_of_a_message_about_a_decision_has_the_number_of_its_call(event_id, number):
    assert Inbound("k", event_id, "text").decided_call == number
