"""What a terminal shows around the conversation fits into one line each, wide characters too."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from hermes.adapters.console.activity import Activity, approval_card, fit, is_call, tool_card
from hermes.messages import Approval, ToolCall


def asked(arguments):
    return Approval(1, "k", "k", "order", arguments, "pending", 0.0, 1.0)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("bird", ["heron", "heron " * 50, "鷺" * 100, "a鷺" * 60])
def test_cards_and_lines_fit_into_one_line(columns, bird):
    arguments = f'{{"bird": "{bird}", "number": 2}}'
    call = ToolCall("c", "order", arguments)
    card = approval_card(asked(arguments), columns)
    activity = Activity(phase="thinking", queued=(bird, "two\nlines"), facts=f"{bird} · context 1%")
    lines = [card, tool_card(call, bird, columns, failed=False), *activity.lines(0.0, columns)]
    assert all(cell_len(line) < columns and "\n" not in line for line in lines)
    assert card.startswith("? order(bird=")
    assert card.endswith(") waits for your approval")


def test_a_text_that_fits_is_not_cut():
    assert fit("鷺鷺", 4) == "鷺鷺"
    assert fit("鷺鷺", 3) == "鷺…"
    assert fit("heron", 5) == "heron"
    assert fit("heron", 4) == "her…"


def test_a_call_is_recognized_whatever_the_form_of_its_arguments():
    approval = asked('{"a":1,"b":"\\u00e9"}')
    assert is_call(approval, ToolCall("c", "order", '{"b": "é", "a": 1}'))
    assert not is_call(approval, ToolCall("c", "order", '{"b": "é", "a": 2}'))
    assert not is_call(approval, ToolCall("c", "other", '{"b": "é", "a": 1}'))
    assert not is_call(approval, ToolCall("c", "order", "not JSON"))
