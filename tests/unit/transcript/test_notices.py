"""`visible_text`: the text that a user sees for every kind of result."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from hermes.actors.commands import ALIASES, COMMANDS
from hermes.messages import TurnResult
from hermes.texts import ENGLISH
from hermes.transcript.notices import visible_text

RESULTS = st.builds(
    TurnResult,
    text=st.sampled_from([None, "", " \n", "Hello!"]),
    failed=st.booleans(),
    partial=st.booleans(),
    interrupted=st.booleans(),
    api_calls=st.integers(0, 3),
    error=st.sampled_from(
        [None, "", "prompt is too long", "boom", "it remained incomplete after 3 tries"]
    ),
)


def shown(history_len=5, **result):
    return visible_text(TurnResult(**result), history_len, ENGLISH)


def test_text_is_shown_unchanged_whatever_else_happened():
    text = " Hello!\n"
    for flag in ("failed", "partial", "interrupted"):
        assert shown(text=text, error="boom", api_calls=0, **{flag: True}) == text


def test_an_overflow_explains_how_to_continue():
    text = shown(failed=True, api_calls=0, error="prompt is too long: 213462 tokens > 200000")
    assert "context window" in text
    assert "/compact" in text
    assert "/reset" in text


def test_another_failure_shows_300_characters_of_its_error():
    text = shown(failed=True, error="boom " * 100)
    assert ("boom " * 60) in text
    assert ("boom " * 61).strip() not in text
    assert "/reset" in text
    assert "context window" not in text


@pytest.mark.parametrize("error", [None, "", "  \n"])
def test_a_failure_without_an_error_is_unknown(error):
    assert "unknown error" in shown(failed=True, error=error)


def test_an_interruption_before_the_first_call_asks_to_send_it_again():
    text = shown(interrupted=True, api_calls=0)
    assert "interrupted" in text
    assert "send it again" in text


def test_a_later_interruption_shows_nothing():
    assert shown(interrupted=True, api_calls=1) == ""
    assert shown(interrupted=True, partial=True, error="boom") == ""


@pytest.mark.parametrize("text", [None, "", " "])
def test_an_agent_that_gave_up_continuing_shows_nothing(text):
    error = "The reply remained incomplete after 3 more requests"
    assert shown(text=text, partial=True, error=error) == ""


def test_a_partial_result_shows_300_characters_of_its_error():
    text = shown(partial=True, error="boom " * 100)
    assert ("boom " * 60) in text
    assert ("boom " * 61).strip() not in text
    assert "unknown error" in shown(partial=True)


def test_calls_without_a_reply_are_mentioned():
    assert "without a reply" in shown(api_calls=2)
    assert shown(api_calls=2, text=" ") == shown(api_calls=2)


@pytest.mark.parametrize("calls", [0, 3])
def test_a_structured_result_needs_no_text(calls):
    assert shown(data={"x": 1}, api_calls=calls) == ""


def test_no_call_at_all_asks_to_send_it_again():
    text = shown(api_calls=0)
    assert "send it again" in text
    assert text != shown(interrupted=True, api_calls=0)


def test_a_partial_result_without_a_call_shows_its_error_if_it_has_one():
    assert shown(api_calls=0, partial=True, error=" ") == ""
    text = ENGLISH.stopped_early.format(error="boom")
    assert shown(api_calls=0, partial=True, error="boom") == text


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("data", [None, {"x": 1}])
def test_an_error_without_a_text_is_shown_although_the_result_has_not_failed(calls, data):
    text = ENGLISH.failed.format(error="boom" * 75)
    assert shown(error="boom" * 100, api_calls=calls, data=data) == text
    assert shown(error="prompt is too long", api_calls=calls, data=data) == ENGLISH.overflow


class TestResultsWithoutAResponse:
    """Five results that a gateway once passed on as an empty or a null response."""

    def test_an_invalid_tool_call_after_five_calls_is_shown(self):
        error = "Model generated invalid tool call: nonexistent_tool"
        assert "nonexistent_tool" in shown(10, api_calls=5, partial=True, error=error)

    def test_an_interrupted_turn_shows_nothing(self):
        assert shown(10, api_calls=3, interrupted=True) == ""

    def test_a_context_overflow_suggests_compact(self):
        error = "400 Bad Request: context length exceeded"
        text = shown(60, api_calls=0, failed=True, error=error)
        assert "context window" in text
        assert "/compact" in text

    def test_a_server_error_is_shown_and_suggests_reset(self):
        text = shown(5, api_calls=0, failed=True, error="500 Internal Server Error")
        assert "500 Internal Server Error" in text
        assert "/reset" in text

    def test_a_response_is_unchanged(self):
        assert shown(5, text="Hello!") == "Hello!"


@given(result=RESULTS, history_len=st.integers(0, 100))
def test_every_command_in_a_notice_exists(result, history_len):
    assert set(re.findall(r"/\w+", visible_text(result, history_len, ENGLISH))) <= {
        f"/{name}" for name in (*COMMANDS, *ALIASES)
    }


@given(result=RESULTS, history_len=st.integers(0, 100))
def test_white_space_alone_is_never_shown(result, history_len):
    text = visible_text(result, history_len, ENGLISH)
    assert text == "" or text.strip()
