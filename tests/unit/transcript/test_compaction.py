"""Compaction of a transcript: limits, plans, summaries and the result."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, strategies as st

from hermes.messages import Message, StoredMessage, ToolCall
from hermes.transcript.compaction import (
    SUMMARY_END,
    SUMMARY_MARK,
    CompactionPlan,
    Limits,
    compacted,
    is_summary,
    limits,
    plan,
    shrank,
    summary_message,
    summary_text,
)
from hermes.transcript.tokens import estimate_tokens
from tests.support.transcripts import (
    BUDGETS,
    HEADS,
    KEPT,
    TEXTS,
    TRANSCRIPTS,
    calls,
    calls_made,
    reply,
    result,
    stored,
    user,
)

# The rules, implemented again in the simplest way.


def partners(rows):
    """Return pairs of positions that must not be divided."""
    pairs = []
    for position, row in enumerate(rows):
        later = range(position + 1, len(rows))
        spoken = [n for n in later if rows[n].role == "assistant"]
        for id_ in {call.id for call in row.tool_calls}:
            again = [n for n in later if id_ in {call.id for call in rows[n].tool_calls}]
            mine = range(position + 1, again[0] if again else len(rows))
            asked = sum(call.id == id_ for call in row.tool_calls)
            results = [
                n for n in mine if rows[n].role == "tool" and (rows[n].tool_call_id or "") == id_
            ][:asked]
            pairs += [(position, n) for n in results]
            if len(results) < asked:
                pairs.append((position, spoken[0] - 1 if spoken else len(rows)))
    return pairs


def is_safe(rows, position):
    if position == 0:
        return True
    if any(first < position <= second for first, second in partners(rows)):
        return False
    return position == len(rows) or rows[position].role != "tool"


def old_summary(rows):
    """Return the position of the summary to update: the last before the last user message."""
    asked = [n for n, row in enumerate(rows) if row.role == "user" and not is_summary(row)]
    found = [n for n, row in enumerate(rows[: asked[-1] if asked else None]) if is_summary(row)]
    return found[-1] if found else None


def without_summary(rows):
    """Return the rows without that summary, and its position."""
    position = old_summary(rows)
    return (rows, 0) if position is None else (rows[:position] + rows[position + 1 :], position)


def mandatory(rows):
    """Return the rows that are kept whatever the budget."""
    body, start = without_summary(rows)
    asked = [n for n, row in enumerate(body) if row.role == "user" and not is_summary(row)]
    begin = asked[-1] if asked else len(body)
    said = [
        n
        for n in range(start, begin)
        if body[n].role == "assistant" and (body[n].content or "").strip()
    ]
    begin = said[-1] if said else begin
    return body[max(n for n in range(begin + 1) if is_safe(body, n)) :]


def same(left, right):
    """Whether both contain the same objects."""
    return list(map(id, left)) == list(map(id, right))


# Limits.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1_000, 8_192, 0.75, 0.2), Limits(1_000, 375, 75, 150)),
        ((8_192, 8_192, 0.75, 0.2), Limits(8_192, 3_072, 614, 1_229)),
        ((128_000, 8_000, 0.75, 0.2), Limits(128_000, 90_000, 18_000, 6_400)),
        ((200_000, 64_000, 0.5, 0.2), Limits(200_000, 68_000, 13_600, 10_000)),
        ((2_000_000, 64_000, 0.5, 0.2), Limits(2_000_000, 968_000, 193_600, 10_000)),
        ((1_000, 0, 1, 0), Limits(1_000, 999, 0, 499)),
        ((2, 0, 0.01, 0.99), Limits(2, 1, 0, 1)),
    ],
)
def test_limits_are_a_share_of_the_window_without_the_output(given, expected):
    window, max_output, share, tail_share = given
    assert limits(window, max_output=max_output, share=share, tail_share=tail_share) == expected


@given(
    st.integers(2, 10**12),
    st.integers(0, 10**12),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1, exclude_max=True),
)
@example(10**12, 0, 1.0, 1 - 2**-53)
def test_limits_leave_room_for_a_summary_below_the_threshold(window, output, share, tail_share):
    found = limits(window, max_output=output, share=share, tail_share=tail_share)
    assert found.window == window
    assert 1 <= found.compress_at < window
    assert found.compress_at + min(output, window // 2) <= window
    assert 0 <= found.tail_tokens < found.compress_at
    assert 1 <= found.summary_tokens <= 10_000
    assert found.tail_tokens + found.summary_tokens <= found.compress_at


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"window": 0}, "the context window is 0 tokens; it must be at least 2"),
        ({"window": -1}, "the context window is -1 tokens; it must be at least 2"),
        ({"window": 1}, "the context window is 1 tokens; it must be at least 2"),
        ({"max_output": -1}, "max_output is -1 tokens; it must not be negative"),
        ({"share": 0}, "share is 0; it must be above 0 and at most 1"),
        ({"share": 1.1}, "share is 1.1; it must be above 0 and at most 1"),
        ({"share": float("nan")}, "share is nan; it must be above 0 and at most 1"),
        ({"tail_share": -0.1}, "tail_share is -0.1; it must be at least 0 and below 1"),
        ({"tail_share": 1}, "tail_share is 1; it must be at least 0 and below 1"),
    ],
)
def test_invalid_values_are_rejected_in_one_sentence(changed, sentence):
    sound = {"window": 1_000, "max_output": 100, "share": 0.5, "tail_share": 0.2}
    with pytest.raises(ValueError) as refused:
        limits(**sound | changed)
    assert str(refused.value) == sentence


# Plans.


def test_a_transcript_is_divided_into_head_middle_and_tail():
    rows = stored(
        [user(), reply(), user(), reply(), user(), calls("a"), result("a"), reply(), user()]
    )
    assert plan(rows, tail_tokens=0, protect_first=2) == CompactionPlan(
        rows[:2], rows[2:7], rows[7:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=0) == CompactionPlan(
        [], rows[:7], rows[7:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=-1) == CompactionPlan(
        [], rows[:7], rows[7:], None
    )


def test_the_head_stays_within_its_budget_and_keeps_calls_with_their_results():
    exchanges = [user(), reply()] * 3
    rows = stored([user(), calls("a"), result("a"), reply(), *exchanges])
    sizes = [estimate_tokens(rows[:end]) for end in range(5)]
    heads = {
        budget: len(plan(rows, tail_tokens=0, protect_first=4, head_tokens=budget).head)
        for budget in (0, *sizes, sizes[-1] + 1)
    }
    assert heads[0] == 0
    assert heads[sizes[1]] == 1
    assert heads[sizes[2]] == 1
    assert heads[sizes[3]] == 3
    assert heads[sizes[4]] == heads[sizes[4] + 1] == 4


def test_the_tail_grows_with_its_budget_until_nothing_is_left_to_summarise():
    rows = stored([user() for _ in range(5)])  # 6.5 tokens each
    sizes = [plan(rows, tail_tokens=budget, protect_first=0) for budget in (0, 12, 13, 19, 20, 26)]
    assert [found and len(found.tail) for found in sizes] == [1, 1, 2, 2, 3, None]


def test_an_old_summary_is_replaced_and_the_head_is_empty():
    old = summary_message("what was")
    rows = [user(), reply(), old, reply(), reply(), user()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "what was")
    assert plan(rows, tail_tokens=0, protect_first=2) == expected
    assert plan(rows, tail_tokens=0, protect_first=0) == expected
    assert plan(rows, tail_tokens=0, protect_first=5) == expected
    assert plan(rows, tail_tokens=10_000, protect_first=2) == CompactionPlan(
        [], rows[:2], rows[3:], "what was"
    )


def test_only_the_newest_of_several_summaries_is_updated():
    rows = [summary_message("older"), reply(), summary_message("newer"), user(), reply(), user()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "newer")
    assert plan(rows, tail_tokens=0, protect_first=2) == expected


def test_a_summary_is_not_a_question():
    rows = [user(), reply(), reply(), user(), calls("a"), result("a"), summary_message("late")]
    assert plan(rows, tail_tokens=0, protect_first=0) == CompactionPlan(
        [], rows[:2], rows[2:], None
    )


def test_a_call_without_a_result_reaches_to_the_next_assistant_message():
    unanswered = [user(), reply(), calls("a"), user()]
    assert plan(unanswered, tail_tokens=0, protect_first=0, keep_exchanges=1).tail == unanswered[2:]
    spoken = [user(), calls("a"), user(), reply(), user()]
    assert plan(spoken, tail_tokens=0, protect_first=0, keep_exchanges=1).tail == spoken[4:]
    assert plan(spoken, tail_tokens=0, protect_first=0).tail == spoken[3:]


def test_a_late_result_keeps_everything_between_in_one_piece():
    rows = [
        user(),
        reply(),
        calls("a"),
        reply("wait"),
        user(),
        reply(),
        user(),
        result("a"),
        reply(),
    ]
    assert plan(rows, tail_tokens=0, protect_first=0) == CompactionPlan(
        [], rows[:2], rows[2:], None
    )


def test_a_result_with_a_reused_id_belongs_to_the_latest_call():
    turn = [user(), calls("a"), result("a")]
    rows = [*turn, *turn, *turn, reply(), user()]
    assert plan(rows, tail_tokens=0, protect_first=4) == CompactionPlan(
        rows[:4], rows[4:9], rows[9:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:4], rows[4:9], rows[9:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=6) == CompactionPlan(
        rows[:6], rows[6:9], rows[9:], None
    )


def test_a_duplicate_result_blocks_no_position():
    rows = [
        user(),
        calls("a"),
        user(),
        calls("a"),
        result("a"),
        user(),
        result("a"),
        reply(),
        user(),
    ]
    assert plan(rows, tail_tokens=0, protect_first=3) == CompactionPlan(
        rows[:3], rows[3:7], rows[7:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:5], rows[5:7], rows[7:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=6) == CompactionPlan(
        rows[:5], rows[5:7], rows[7:], None
    )


def test_calls_of_one_message_may_share_an_id():
    rows = [
        user(),
        calls("", ""),
        result(""),
        user(),
        result(None),
        user(),
        user(),
        reply(),
        user(),
    ]
    assert plan(rows, tail_tokens=0, protect_first=4) == CompactionPlan(
        rows[:1], rows[1:7], rows[7:], None
    )
    assert plan(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:5], rows[5:7], rows[7:], None
    )


@pytest.mark.parametrize("rows", [[], [user()], [user(), reply()], [reply(), user(), reply()]])
def test_a_short_transcript_is_not_compacted(rows):
    assert plan(rows, tail_tokens=0, protect_first=0) is None
    assert plan(rows, tail_tokens=0, protect_first=0, keep_exchanges=1) is None


def test_a_single_message_is_worth_a_summary_only_if_it_is_long():
    assert plan([user("x" * 784), reply(), user()], tail_tokens=0, protect_first=0) is None
    rows = [user("x" * 785), reply(), user()]
    assert plan(rows, tail_tokens=0, protect_first=0) == CompactionPlan(
        [], rows[:1], rows[1:], None
    )


def test_without_a_user_the_last_reply_is_kept():
    rows = [reply(), calls("a"), result("a"), reply(), calls("b"), result("b")]
    assert plan(rows, tail_tokens=0, protect_first=0).tail == rows[3:]
    assert plan(rows, tail_tokens=0, protect_first=0, keep_exchanges=3).tail == rows[3:]
    bare = [calls("a"), result("a"), calls("b"), result("b")]
    assert plan(bare, tail_tokens=0, protect_first=0) == CompactionPlan([], bare, [], None)


@pytest.mark.parametrize("blank", [None, "", " \n"])
def test_a_blank_reply_does_not_count_as_the_last_one(blank):
    rows = [user(), user(), reply("seen"), reply(blank), user()]
    assert plan(rows, tail_tokens=0, protect_first=0).tail == rows[2:]
    shown = Message(role="assistant", content=blank, parts=({"type": "image"},))
    rows = [user(), user(), reply("seen"), shown, user()]
    assert plan(rows, tail_tokens=0, protect_first=0).tail == rows[3:]


def test_questions_answered_together_start_one_exchange():
    rows = [user(), reply(), user(), user(), calls("a"), result("a"), reply(), user(), reply()]
    found = [
        plan(rows, tail_tokens=10_000, protect_first=0, keep_exchanges=count) for count in range(5)
    ]
    assert [kept and len(kept.tail) for kept in found] == [2, 2, 7, None, None]
    unanswered = [user(), reply(), user()]
    assert plan(unanswered, tail_tokens=0, protect_first=0, keep_exchanges=2) is None


def test_exchanges_are_counted_after_the_last_summary():
    old = summary_message("what was")
    rows = [user(), reply(), old, reply(), user(), reply(), user(), reply()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "what was")
    assert plan(rows, tail_tokens=0, protect_first=2, keep_exchanges=9) == expected
    rows = [reply(), user(), old, user(), reply(), user(), reply()]
    expected = CompactionPlan([], rows[:2], rows[3:], "what was")
    assert plan(rows, tail_tokens=0, protect_first=2, keep_exchanges=2) == expected


def test_planning_takes_linear_time():
    def planning(turns):
        rows = [user(), calls("a"), result("a"), reply()] * turns
        return calls_made(lambda: plan(rows, tail_tokens=10**6, protect_first=3))

    assert planning(200) < 2.5 * planning(100)


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_the_pieces_are_the_transcript_without_the_old_summary(rows, budget, head, kept):
    found = plan(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    assert same(found.head + found.middle + found.tail, without_summary(rows)[0])
    position = old_summary(rows)
    assert found.previous == (None if position is None else summary_text(rows[position]))
    assert len(found.head) <= (head if position is None else 0)
    assert len(found.middle) >= 2 or estimate_tokens(found.middle) > 200


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_calls_and_results_stay_together(rows, budget, head, kept):
    found = plan(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    body, _ = without_summary(rows)
    assert is_safe(body, len(found.head))
    assert is_safe(body, len(found.head) + len(found.middle))


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_the_tail_has_the_last_question_and_the_reply_before_it(rows, budget, head, kept):
    found = plan(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    asked = [row for row in rows if row.role == "user" and not is_summary(row)]
    if asked:
        assert any(row is asked[-1] for row in found.tail)
    if kept is None:
        needed = mandatory(rows)
        assert same(found.tail[len(found.tail) - len(needed) :], needed)


@given(TRANSCRIPTS, BUDGETS, HEADS)
def test_the_tail_is_as_long_as_the_budget_allows(rows, budget, head):
    found = plan(rows, tail_tokens=budget, protect_first=head)
    assume(found is not None)
    needed = mandatory(rows)
    assert estimate_tokens(found.tail) <= max(budget, estimate_tokens(needed))
    body, earliest = without_summary(rows)
    start = len(body) - len(found.tail)
    for position in range(earliest, start):
        assert not is_safe(body, position) or estimate_tokens(body[position:]) > budget


@given(TRANSCRIPTS, HEADS)
def test_the_head_ends_at_the_last_safe_position(rows, head):
    found = plan(rows, tail_tokens=0, protect_first=head)
    assume(found is not None and found.previous is None)
    assert not any(is_safe(rows, position) for position in range(len(found.head) + 1, head + 1))


@given(TRANSCRIPTS, st.integers(0, 4))
def test_kept_exchanges_are_kept_whatever_the_budget(rows, kept):
    found = plan(rows, tail_tokens=0, protect_first=0, keep_exchanges=kept)
    assert found == plan(rows, tail_tokens=10**6, protect_first=0, keep_exchanges=kept)
    assume(found is not None)
    body, earliest = without_summary(rows)
    asked = [row.role == "user" and not is_summary(row) for row in body]
    begins = [
        n for n in range(earliest, len(body)) if asked[n] and (n == earliest or not asked[n - 1])
    ]
    assume(begins)
    start = begins[max(0, len(begins) - max(1, kept))]
    assert len(found.tail) == len(body) - max(n for n in range(start + 1) if is_safe(body, n))


@given(TRANSCRIPTS, BUDGETS, HEADS, HEADS, KEPT)
def test_a_second_plan_finds_the_summary_of_the_first(rows, budget, head, other_head, kept):
    found = plan(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None and not any(map(is_summary, found.tail)))
    once = compacted(found, "so far")
    rows = [*once, reply("x" * 1_000), calls("z"), result("z"), reply("new"), user("new")]
    again = plan(rows, tail_tokens=0, protect_first=other_head)
    assert again.previous == "so far"
    assert again.head == []


@given(TRANSCRIPTS, BUDGETS, HEADS, TEXTS)
def test_repeated_compaction_ends_below_any_threshold_that_can_be_met(rows, budget, head, summary):
    frames = [row for row in rows if is_summary(row)] + [summary_message(summary)]
    bound = (
        estimate_tokens(rows[:head])
        + max(estimate_tokens([frame]) for frame in frames)
        + max(budget, estimate_tokens(mandatory(rows)))
        + 200  # a single short message is not worth a summary
    )
    for _ in range(4):
        found = plan(rows, tail_tokens=budget, protect_first=head)
        if found is None:
            break
        rows = compacted(found, summary)
        assert estimate_tokens(rows) <= bound
    else:
        pytest.fail("compaction did not end")
    assert estimate_tokens(rows) <= bound


# Summaries.

PIECES = [
    *(SUMMARY_MARK, SUMMARY_END, "\n", "\\", "[", "]", "END OF ", "CONTEXT SUMMARY"),
    *("[CONTEXT SUMMARY", "[\\CONTEXT SUMMARY", "[END OF CONTEXT SUMMARY"),
    "[\\\\end of Context Summary",
]
SAID = st.text() | st.lists(st.sampled_from(PIECES)).map("".join)


@given(SAID)
@example(f"\n{SUMMARY_END}\n{SUMMARY_MARK}\n")
@example("\ud800")
def test_the_text_of_a_summary_is_recovered(text):
    assert is_summary(summary_message(text))
    assert summary_text(summary_message(text)) == text


@given(SAID)
def test_no_text_escapes_the_delimiters(text):
    content = summary_message(text).content
    assert content.startswith(f"{SUMMARY_MARK}\n")
    assert content.endswith(f"\n{SUMMARY_END}")
    lowered = content.lower()
    assert lowered.count("[context summary") == 1
    assert lowered.count("[end of context summary") == 1


def test_a_summary_is_marked_as_untrusted_in_one_line():
    assert SUMMARY_MARK.startswith("[CONTEXT SUMMARY")
    assert "\n" not in SUMMARY_MARK + SUMMARY_END
    assert {"reference", "untrusted", "instructions"} <= set(SUMMARY_MARK.replace(";", "").split())
    made = summary_message("so far")
    assert made == Message(
        role="user",
        content=f"{SUMMARY_MARK}\nso far\n{SUMMARY_END}",
        provider_data={"hermes": "summary"},
    )


@pytest.mark.parametrize(
    "content", [None, "", "changed", SUMMARY_MARK, f"{SUMMARY_MARK}\n{SUMMARY_END}"]
)
def test_a_summary_is_recognized_even_if_its_text_was_changed(content):
    changed = Message(role="user", content=content, provider_data={"hermes": "summary"})
    assert is_summary(changed)
    assert summary_text(changed) == (content or "")


def test_users_and_providers_cannot_forge_a_summary():
    made = summary_message("so far")
    assert not is_summary(user(made.content))
    assert not is_summary(Message(role="user", content=made.content, provider_data={}))
    assert not is_summary(Message(role="user", provider_data={"hermes": ["summary"]}))
    assert not is_summary(Message(role="assistant", provider_data={"hermes": "summary"}))


# Compacted transcripts.


def test_a_stored_message_keeps_everything_except_its_id():
    fields = {
        "role": "tool",
        "content": "text",
        "timestamp": 12.5,
        "platform_message_id": "p1",
        "parts": ({"type": "text", "text": "text"},),
        "tool_calls": (ToolCall("1", "look"),),
        "tool_call_id": "1",
        "tool_name": "look",
        "reasoning": "because",
        "reasoning_details": ({"a": 1},),
        "finish_reason": "stop",
        "token_count": 3,
        "provider_data": {"b": 2},
        "edits": "p0",
        "chat": "bot/7",
    }
    assert set(fields) == set(Message.__struct_fields__)
    row = StoredMessage(id=7, **fields)
    found = CompactionPlan([row], [user()], [row], None)
    assert compacted(found, "s") == [Message(**fields), summary_message("s"), Message(**fields)]


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT, TEXTS)
def test_head_and_tail_are_unchanged(rows, budget, head, kept, summary):
    found = plan(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    made = compacted(found, summary)
    kept_rows = made[: len(found.head)] + made[len(found.head) + 1 :]
    assert made[len(found.head)] == summary_message(summary)
    for before, after in zip(found.head + found.tail, kept_rows, strict=True):
        assert type(after) is Message
        for name in Message.__struct_fields__:
            assert getattr(after, name) == getattr(before, name)
    assert same(compacted(CompactionPlan([], [], made, None), "")[1:], made)


@pytest.mark.parametrize(
    ("before", "after", "margin", "worth_it"),
    [
        (100, 90, 0.1, True),
        (100, 91, 0.1, False),
        (100, 99, 0, True),
        (100, 100, 0, False),
        (0, 0, 0.1, False),
        (100, 50, 0.5, True),
        (100, 51, 0.5, False),
    ],
)
def test_a_result_must_be_smaller_by_a_margin(before, after, margin, worth_it):
    assert shrank(before, after, margin) is worth_it


def test_the_default_margin_is_a_tenth():
    assert [shrank(1_000, after) for after in (900, 901)] == [True, False]
