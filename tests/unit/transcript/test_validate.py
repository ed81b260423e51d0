"""`as_result` and `check_result`: results that can be stored, and errors for all others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from hermes.messages import Message, ToolCall, TurnResult, Usage
from hermes.transcript.validate import (
    MAX_DEPTH,
    as_result,
    check_depth,
    check_result,
    check_rows,
)


def checked_result(returned):
    result = as_result(returned)
    check_result(result)
    return result


def nested(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@given(st.text())
def test_a_string_is_the_text_of_a_result(text):
    assert checked_result(text) == TurnResult(text=text)


def test_a_valid_result_is_returned_unchanged():
    rows = [
        Message("assistant", "x", 1.5, "m1", tool_calls=(ToolCall("1", "look"),)),
        Message("tool", None, parts=({"type": "text", "text": "a"},), tool_call_id="1"),
    ]
    result = TurnResult(
        text="hi", rows=rows, usage=(Usage(model="m", input_tokens=3),), session_id="s"
    )
    assert checked_result(result) is result


WRONG = {
    "text": (TurnResult(text=1), "TurnResult.text must be a string, not int"),
    "error": (TurnResult(error=b"x"), "TurnResult.error must be a string, not bytes"),
    "calls": (TurnResult(api_calls="1"), "TurnResult.api_calls must be an int, not str"),
    "session": (TurnResult(session_id=7), "TurnResult.session_id must be a string, not int"),
    "rows": (TurnResult(rows="abc"), "rows must be a list of messages, not str"),
    "row": (TurnResult(rows=[{"role": "user"}]), "a row must be a Message, not dict"),
    "role": (TurnResult(rows=[Message(None)]), "Message.role must be a string, not NoneType"),
    "content": (TurnResult(rows=[Message("user", 1)]), "Message.content must be a string, not int"),
    "stamp": (
        TurnResult(rows=[Message("user", "x", "now")]),
        "Message.timestamp must be a number, not str",
    ),
    "message id": (
        TurnResult(rows=[Message("user", "x", None, 5)]),
        "Message.platform_message_id must be a string, not int",
    ),
    "usage": (TurnResult(usage=None), "usage must be a list of Usage, not NoneType"),
    "call": (TurnResult(usage=[{}]), "an item of usage must be a Usage, not dict"),
    "nothing": (None, "an agent must return a TurnResult or a string, not NoneType"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_named_in_one_sentence(name):
    result, sentence = WRONG[name]
    with pytest.raises(TypeError) as raised:
        checked_result(result)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": ("look",)},
        {"tool_calls": (ToolCall(1, "look"),)},
        {"parts": ("text",)},
        {"parts": ({"type": object()},)},
        {"token_count": "3"},
        {"provider_data": ["x"]},
        {"reasoning": 1},
    ],
)
def test_a_wrong_extra_field_is_a_type_error(fields):
    with pytest.raises(TypeError, match="a Message has a field of the wrong type"):
        check_rows([Message("assistant", "x", **fields)])


@pytest.mark.parametrize("tokens", [-1, 2**63])
def test_token_counts_must_fit_into_the_store(tokens):
    with pytest.raises(ValueError, match=f"Usage.output_tokens is out of range: {tokens}"):
        checked_result(TurnResult(usage=[Usage(model="m", output_tokens=tokens)]))
    with pytest.raises(TypeError, match="a Usage has a field of the wrong type"):
        checked_result(TurnResult(usage=[Usage(model="m", output_tokens="3")]))


@pytest.mark.parametrize("cost", [-0.01, float("inf"), float("nan")])
def test_a_cost_that_would_falsify_budgets_is_refused(cost):
    with pytest.raises(ValueError, match="cost is out of range"):
        checked_result(TurnResult(usage=[Usage(model="m", cost=cost)]))


@pytest.mark.parametrize("session_id", ["x" * 201, "a\nb", "\x00"])
def test_a_session_id_is_printable_and_short(session_id):
    with pytest.raises(ValueError, match="at most 200 printable characters"):
        checked_result(TurnResult(session_id=session_id))
    assert checked_result(TurnResult(session_id="x" * 200))


def test_the_depth_of_json_is_limited():
    check_depth(nested(MAX_DEPTH - 1))
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        check_depth(nested(MAX_DEPTH))
    deep = Message("user", "x", parts=(nested(100_000),))
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        check_rows([deep])
    check_rows([Message("user", "x", parts=(nested(MAX_DEPTH - 4),))])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(
    st.builds(
        Message,
        st.sampled_from(["user", "assistant", "tool"]) | JSON,
        st.none() | st.text(max_size=3) | JSON,
        parts=st.none() | st.lists(JSON, max_size=2).map(tuple),
        tool_call_id=st.none() | JSON,
        token_count=st.none() | JSON,
        provider_data=JSON,
    )
)
def test_rows_that_pass_can_be_encoded_and_read_again(row):
    try:
        check_rows([row])
    except (TypeError, ValueError):
        return
    assert msgspec.json.decode(msgspec.json.encode(row), type=Message) == row


@pytest.mark.parametrize("data", [{"a": [1, 2.5, None, True]}, [], "x", 0, nested(50)])
def test_data_may_be_any_json_value(data):
    assert checked_result(TurnResult(data=data)).data is data


@pytest.mark.parametrize("data", [object(), {1: 2}, float("nan"), {"a": {1, 2}}, b"x", nested(200)])
def test_data_that_is_not_json_is_refused(data):
    with pytest.raises((TypeError, ValueError), match=r"JSON value|nested"):
        checked_result(TurnResult(data=data))
