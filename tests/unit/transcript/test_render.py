"""`render`: any rows become valid messages for a provider, and no user text is lost."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st
from msgspec.structs import replace

from hermes.messages import Extra, Message, StoredMessage, ToolCall
from hermes.store.conversations.codec import text_of
from hermes.transcript.render import INTERRUPTED, NO_OUTPUT, OPENING, is_valid, render
from tests.support.examples import examples

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def user(text=None, **rest):
    return Message("user", text, **rest)


def says(text=None, **rest):
    return Message("assistant", text, **rest)


def calls(*ids, text=None, **rest):
    return Message("assistant", text, tool_calls=tuple(ToolCall(id_, "f") for id_ in ids), **rest)


def result(id_, text="done", **rest):
    return Message("tool", text, tool_call_id=id_, **rest)


def interrupted(id_):
    return Message("tool", INTERRUPTED, tool_call_id=id_, tool_name="f")


def part(text):
    return {"type": "text", "text": text}


def stored(message, id_=1):
    """Return the message as the store returns it."""
    extra = {name: getattr(message, name) for name in Extra.__struct_fields__}
    return StoredMessage(id_, message.role, text_of(message), 5.0, **extra)


# Rows are drawn from small tables, which is four times as fast as building them field by field. Few
# ids, so that they collide, also with those that render makes up.
IDS = ["a", "b", "a_2", "", "call"]
TEXTS = [None, " \n", "word"]
PARTS = [
    None,
    (),
    (IMAGE,),
    (part("seen"), IMAGE),
    (part(" "),),
    (IMAGE, {"type": "text", "text": 1}),
]
CALLS = [(), ("a",), ("b",), ("a", "b"), ("a", "a"), ("a_2",), ("",), ("call", "a", "")]
USERS = [user(text, parts=parts) for text in TEXTS for parts in PARTS]
ASSISTANTS = [calls(*ids, text=text, parts=p) for ids in CALLS for text in TEXTS for p in PARTS[:4]]
TOOLS = [result(id_, text, parts=p) for id_ in [*IDS, None] for text in TEXTS for p in PARTS[:4:3]]
ODD = [
    Message("system", "be nice"),
    Message("session_meta", "x", tool_calls=(ToolCall("a", "f"),)),
    user("word", tool_calls=(ToolCall("a", "f"),)),
    result("a", tool_calls=(ToolCall("b", "f"),)),
]


@st.composite
def any_rows(draw):
    """Rows in any order, some of them from the store, each with a unique text."""
    kinds = st.one_of(map(st.sampled_from, [USERS, ASSISTANTS, TOOLS, ODD]))
    rows = []
    for place, row in enumerate(draw(st.lists(kinds, max_size=15))):
        own = replace(row, content=f"word {place}") if row.content == "word" else row
        rows.append(stored(own, place) if draw(st.booleans()) else own)
    return rows


ROWS = any_rows()
SOME_IDS = st.sampled_from(IDS)
WORDS = st.sampled_from(["yes", "no", "maybe"])


@st.composite
def turns(draw, ids=SOME_IDS):
    """A complete turn: input, calls with all their results, and a final reply."""
    rows = [user(draw(WORDS))]
    for asked in draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)):
        rows.append(calls(*asked, text=draw(st.sampled_from(TEXTS))))
        rows += [result(id_, draw(WORDS)) for id_ in asked]
    return [*rows, says(draw(WORDS))]


@st.composite
def valid_transcripts(draw):
    """Turns whose calls have unique ids; the last may be incomplete."""
    names = map("call {}".format, range(1000))
    fresh = st.builds(lambda: next(names))
    rows = [row for turn in draw(st.lists(turns(ids=fresh), max_size=4)) for row in turn]
    return [*rows, user("and?")] if draw(st.booleans()) else rows


@examples(300)
@given(rows=ROWS)
@example(rows=[calls("a"), user("hi"), calls("a"), result("a")])
@example(rows=[calls("a", "a_2"), calls("a")])
@example(rows=[user(parts=(part(" "),)), result("a"), calls("")])
def test_whatever_the_rows_are_the_rendering_is_valid(rows):
    assert is_valid(render(rows)) is None


@examples(200)
@given(rows=ROWS)
def test_rendering_is_idempotent(rows):
    once = render(rows)
    assert render(once) == once


@given(rows=valid_transcripts())
def test_a_valid_transcript_is_unchanged(rows):
    assert is_valid(rows) is None
    assert render(rows) == rows


def words_of(messages):
    """Return all user text of these messages, in order, with single spaces."""
    texts = []
    for message in messages:
        if message.role == "user":
            texts.append(message.content or "")
            texts += [p["text"] for p in message.parts or () if isinstance(p.get("text"), str)]
    return " ".join(" ".join(texts).split())


@examples(200)
@given(rows=ROWS)
@example(rows=[user("one", parts=(IMAGE,)), user("one"), says(" "), user("two")])
def test_user_text_is_kept_in_order(rows):
    shown = words_of(render(rows))
    at = 0
    for row in rows:
        if row.role == "user":
            text = " ".join((row.content or "").split())
            at = shown.index(text, at) + len(text)


@examples(200)
@given(rows=ROWS, end=WORDS, turn=turns())
@example(rows=[user("hi"), calls("a")], end="cut off", turn=[user("go"), calls("a"), result("a")])
def test_another_turn_does_not_change_the_rendering_of_earlier_ones(rows, end, turn):
    before = render([*rows, says(end)])
    assert render([*rows, says(end), *turn])[: len(before)] == before


@given(rows=valid_transcripts())
def test_stored_rows_are_rendered_like_messages(rows):
    shown = render([stored(row, place) for place, row in enumerate(rows)])
    assert [(m.role, m.content, m.tool_calls, m.tool_call_id) for m in shown] == [
        (m.role, m.content, m.tool_calls, m.tool_call_id) for m in rows
    ]


def test_a_stored_row_keeps_everything_except_its_id():
    row = StoredMessage(
        7,
        "assistant",
        "hi",
        5.0,
        "m1",
        parts=(part("hi"),),
        tool_calls=(ToolCall("a", "f"),),
        tool_call_id="x",
        tool_name="y",
        reasoning="hm",
        reasoning_details=({"type": "thinking"},),
        finish_reason="stop",
        token_count=3,
        provider_data={"id": 1},
    )
    shown = render([user("hi"), row])[1]
    names = [name for name in StoredMessage.__struct_fields__ if name != "id"]
    assert {n: getattr(shown, n) for n in names} == {n: getattr(row, n) for n in names}


def test_an_empty_transcript_stays_empty():
    assert render([]) == []
    assert render([says(""), user(None), result("a"), Message("system", "be nice")]) == []


def test_late_results_move_to_their_call_in_the_order_of_the_calls():
    one, two = result("a", "1"), result("b", "2")
    assert render([user("go"), calls("a", "b"), two, user("wait"), one, says("ok")]) == [
        user("go"), calls("a", "b"), one, two, user("wait"), says("ok"),
    ]  # fmt: skip


def test_a_call_without_a_result_is_answered_as_interrupted():
    assert render([user("go"), calls("a", "b"), result("b"), user("stop")]) == [
        user("go"), calls("a", "b"), interrupted("a"), result("b"), user("stop"),
    ]  # fmt: skip


def test_results_without_a_call_are_dropped():
    rows = [user("go"), result("b"), result(None), calls("a"), result("a"), says("ok")]
    assert render(rows) == [user("go"), calls("a"), result("a"), says("ok")]


def test_a_result_before_its_call_is_dropped():
    assert render([user("go"), result("a"), calls("a")]) == [
        user("go"), calls("a"), interrupted("a"),
    ]  # fmt: skip


def test_the_first_result_of_a_call_is_used():
    rows = [user("go"), calls("a"), result("a", "1"), result("a", "2"), says("ok")]
    assert render(rows) == [user("go"), calls("a"), result("a", "1"), says("ok")]


def test_an_empty_result_becomes_a_placeholder():
    for nothing in (result("a", None), result("a", " "), result("a", None, parts=(part(""),))):
        assert render([user("go"), calls("a"), nothing])[2] == result("a", NO_OUTPUT)


def test_a_result_with_only_an_image_is_kept():
    seen = result("a", None, parts=(IMAGE,))
    assert render([user("go"), calls("a"), seen])[2] == seen


def test_consecutive_user_messages_become_one():
    assert render([user("one"), Message("system", "x"), user("two"), user(" ")]) == [
        user("one\n\ntwo")
    ]


def test_text_becomes_a_part_beside_structured_messages():
    rows = [user("look"), user(parts=(IMAGE,)), user("and", parts=(part("there"), IMAGE))]
    assert render(rows) == [
        user(parts=(part("look"), IMAGE, part("and"), part("there"), IMAGE)),
    ]


def test_content_that_repeats_the_parts_is_not_duplicated():
    rows = [stored(user(parts=(part("see"), part(" "), IMAGE, part("this")))), user("please")]
    assert render(rows) == [user(parts=(part("see"), IMAGE, part("this"), part("please")))]


def test_a_single_structured_message_is_unchanged():
    rows = [user("caption", parts=(IMAGE,))]
    assert render(rows) == rows


def test_blank_text_parts_are_omitted():
    assert render([user(parts=(part(" "), IMAGE))]) == [user(parts=(IMAGE,))]
    assert render([user("hi", parts=(part(""),))]) == [user("hi", parts=())]


def test_consecutive_assistant_messages_become_one():
    one = says("one", reasoning="a", reasoning_details=({"n": 1},), token_count=1)
    two = says("two", reasoning="b", reasoning_details=({"n": 2},), token_count=2)
    assert render([user("go"), one, says(None), two]) == [
        user("go"),
        says(
            "one\n\ntwo",
            reasoning="a\n\nb",
            reasoning_details=({"n": 1}, {"n": 2}),
            token_count=3,
        ),
    ]


def test_fields_that_cannot_be_merged_come_from_the_last_message():
    one = says("one", provider_data={"id": 1}, finish_reason="length", token_count=1, timestamp=1.0)
    two = says("two", provider_data={"id": 2}, finish_reason="stop", timestamp=2.0)
    assert render([user("go"), one, two]) == [
        user("go"),
        says("one\n\ntwo", provider_data={"id": 2}, finish_reason="stop", timestamp=2.0),
    ]


def test_text_before_calls_is_merged_with_them_and_text_after_is_not():
    rows = [
        user("go"),
        says("let me see"),
        calls("a", text=""),
        says("hm"),
        result("a"),
        says("ok"),
    ]
    assert render(rows) == [
        user("go"), calls("a", text="let me see"), result("a"), says("hm\n\nok"),
    ]  # fmt: skip


def test_calls_are_never_merged_with_calls():
    assert render([user("go"), calls("a"), calls("b"), result("b"), result("a")]) == [
        user("go"), calls("a"), result("a"), calls("b"), result("b"),
    ]  # fmt: skip


def test_a_user_message_is_inserted_before_an_assistant_that_starts():
    rows = [says("Welcome!"), user("hi")]
    assert render(rows) == [user(OPENING), *rows]
    assert render([calls("a"), result("a")]) == [user(OPENING), calls("a"), result("a")]


def test_a_reused_id_gets_a_number():
    rows = [user("go"), calls("a"), result("a", "1"), calls("a"), result("a", "2"), says("ok")]
    assert render(rows) == [
        user("go"), calls("a"), result("a", "1"), calls("a_2"), result("a_2", "2"), says("ok"),
    ]  # fmt: skip


def test_a_result_belongs_to_the_latest_message_that_used_its_id():
    rows = [user("go"), calls("a"), user("again"), calls("a"), result("a", "2"), result("a", "3")]
    assert render(rows) == [
        user("go"), calls("a"), interrupted("a"),
        user("again"), calls("a_2"), result("a_2", "2"),
    ]  # fmt: skip


def test_calls_with_the_same_id_in_one_message_get_results_in_order():
    assert render([user("go"), calls("a", "a"), result("a", "1"), result("a", "2")]) == [
        user("go"), calls("a", "a_2"), result("a", "1"), result("a_2", "2"),
    ]  # fmt: skip


def test_a_generated_id_avoids_those_in_use():
    shown = render([user("go"), calls("a_2", "a", "a"), calls("a_3")])
    assert [call.id for message in shown for call in message.tool_calls] == [
        "a_2", "a", "a_3", "a_3_2",
    ]  # fmt: skip


def test_empty_ids_are_replaced():
    assert render([user("go"), calls("", ""), result(None, "1"), result("", "2")]) == [
        user("go"), calls("call", "call_2"), result("call", "1"), result("call_2", "2"),
    ]  # fmt: skip


def test_calls_of_other_roles_are_removed():
    odd = (ToolCall("a", "f"),)
    rows = [user("go", tool_calls=odd), calls("b"), result("b", tool_calls=odd), result("a")]
    assert render(rows) == [user("go"), calls("b"), result("b")]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([says("hi")], "message 0 (assistant) starts the conversation"),
        ([user("a"), user("b")], "message 1 (user) follows another message of its role"),
        (
            [user("a"), says("b"), says("c")],
            "message 2 (assistant) follows another message of its role",
        ),
        ([Message("system", "a")], "message 0 (system) has a role that is not allowed here"),
        ([user("a"), result("x")], "message 1 (tool) has a role that is not allowed here"),
        ([user(" ")], "message 0 (user) is empty or has an empty part"),
        ([user("a", parts=(part(""),))], "message 0 (user) is empty or has an empty part"),
        ([user("a"), calls("x")], "call 'x' has no result"),
        (
            [user("a"), calls("x"), user("b")],
            "message 2 (user) is where the result of a call should be",
        ),
        (
            [user("a"), calls("x"), user("b", tool_call_id="x")],
            "message 2 (user) is where the result of a call should be",
        ),
        (
            [user("a"), calls("x", "y"), result("y"), result("x")],
            "message 2 (tool) is where the result of a call should be",
        ),
        (
            [user("a"), calls("x"), result("x"), result("x")],
            "message 3 (tool) has a role that is not allowed here",
        ),
        (
            [user("a"), calls("x"), result("x", "")],
            "message 2 (tool) is empty or has an empty part",
        ),
        ([user("a", tool_calls=(ToolCall("x", "f"),))], "message 0 (user) calls tools"),
        ([user("a"), calls("")], "message 1 (assistant) has a call without a unique id"),
        ([user("a"), calls("x", "x")], "message 1 (assistant) has a call without a unique id"),
        (
            [user("a"), calls("x"), result("x"), calls("x")],
            "message 3 (assistant) has a call without a unique id",
        ),
    ],
)
def test_is_valid_describes_the_first_problem(messages, reason):
    assert is_valid(messages) == reason
    assert is_valid(render(messages)) is None


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user("a")],
        [user(parts=(IMAGE,)), says("b"), user("c")],
        [user("a"), calls("x", text="b"), result("x"), user("c")],
        [user("a"), calls("x"), result("x"), calls("y"), result("y"), says("b")],
    ],
)
def test_is_valid_accepts_valid_transcripts(messages):
    assert is_valid(messages) is None
    assert render(messages) == messages


def test_many_equal_ids_and_a_long_run_take_linear_time():
    # In more than linear time these would take minutes.
    many = 30_000
    shown = render([user("go"), calls(*["a"] * many), *[result("a")] * many])
    assert len({call.id for call in shown[1].tool_calls}) == many
    assert is_valid(shown) is None
    assert len(render([user("hi", parts=(IMAGE,))] * many)) == 1


def test_an_unresolved_reference_is_described_by_its_text_only():
    photo = {"type": "image", "ref": "telegram:abc", "label": "photo"}
    (alone,) = render([user("[photo] look", parts=(photo,))])
    assert (alone.content, bool(alone.parts)) == ("[photo] look", False)
    (both,) = render([user("[photo] look", parts=(photo,)), user("well?", parts=(IMAGE,))])
    texts = [{"type": "text", "text": text} for text in ("[photo] look", "well?")]
    assert both.parts == (*texts, IMAGE)
    assert is_valid([alone]) is None
