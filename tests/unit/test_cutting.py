"""Cutting a transcript for compression: estimates, limits, seams, summaries."""

from __future__ import annotations

import itertools
import sys
import time

import pytest
from hypothesis import assume, example, given, strategies as st

from hermes.messages import Message, StoredMessage, ToolCall
from hermes.transcript.compaction import (
    SUMMARY_END,
    SUMMARY_MARK,
    CompactionPlan,
    Limits,
    compacted,
    cut,
    estimate_tokens,
    is_summary,
    limits,
    shrank,
    summary_message,
    summary_text,
)

# How transcripts look: what people and models do, and what imports and crashes leave behind.


def user(text="a question"):
    return Message(role="user", content=text)


def reply(text="an answer"):
    return Message(role="assistant", content=text)


def calls(*ids, content=None):
    asked = tuple(ToolCall(id_, "look", '{"at": 1}') for id_ in ids)
    return Message(role="assistant", content=content, tool_calls=asked)


def result(id_, text="seen"):
    return Message(role="tool", content=text, tool_call_id=id_)


TEXTS = st.sampled_from(["", "ok", "two words", "Grüße", "漢字" * 20, "long " * 100, "x" * 2_000])
IDS = st.sampled_from(["a", "b", ""])


@st.composite
def exchanges(draw):
    """An exchange as it should be: a question, calls with their results, an answer."""
    rows = [user(draw(TEXTS))]
    for _ in range(draw(st.integers(0, 2))):
        ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
        rows += [
            calls(*ids, content=draw(st.none() | TEXTS)),
            *(result(i, draw(TEXTS)) for i in ids),
        ]
    return [*rows, reply(draw(TEXTS))]


ODD_ROWS = st.one_of(
    st.builds(user, TEXTS),
    st.builds(reply, st.none() | TEXTS | st.just(" \n")),
    st.builds(calls, IDS, content=st.none() | TEXTS),
    st.builds(lambda ids: calls(*ids), st.lists(IDS, max_size=3)),
    st.builds(result, IDS | st.none() | st.just("unknown"), TEXTS),
    st.builds(summary_message, TEXTS),
    st.builds(lambda text: Message(role="system", content=text), TEXTS),
)


def stored(rows):
    """The rows as a store would give them, each a new object."""
    return [
        StoredMessage(
            number,
            row.role,
            row.content,
            1.5 * number,
            f"p{number}",
            tool_calls=row.tool_calls,
            tool_call_id=row.tool_call_id,
            provider_data=row.provider_data,
        )
        for number, row in enumerate(rows)
    ]


ORDERLY = st.lists(exchanges(), max_size=6).map(lambda turns: list(itertools.chain(*turns)))
ODD = st.lists(ODD_ROWS, max_size=14)
MIXED = st.tuples(ORDERLY, ODD, ORDERLY).map(lambda pieces: list(itertools.chain(*pieces)))
TRANSCRIPTS = st.one_of(ORDERLY, ODD, MIXED).map(stored)
BUDGETS = st.integers(0, 1_500)
HEADS = st.integers(0, 4)
KEPT = st.none() | st.integers(0, 4)


# What the rules say, in the slowest and plainest way.


def partners(rows):
    """Pairs of places that no boundary may stand between."""
    pairs = []
    for place, row in enumerate(rows):
        later = range(place + 1, len(rows))
        spoken = [n for n in later if rows[n].role == "assistant"]
        for id_ in {call.id for call in row.tool_calls}:
            again = [n for n in later if id_ in {call.id for call in rows[n].tool_calls}]
            mine = range(place + 1, again[0] if again else len(rows))
            asked = sum(call.id == id_ for call in row.tool_calls)
            results = [
                n for n in mine if rows[n].role == "tool" and (rows[n].tool_call_id or "") == id_
            ][:asked]
            pairs += [(place, n) for n in results]
            if len(results) < asked:
                pairs.append((place, spoken[0] - 1 if spoken else len(rows)))
    return pairs


def may_part(rows, place):
    if place == 0:
        return True
    if any(first < place <= second for first, second in partners(rows)):
        return False
    return place == len(rows) or rows[place].role != "tool"


def in_front(rows):
    """The summary that is to be updated: the last one in front of the last user message."""
    asked = [n for n, row in enumerate(rows) if row.role == "user" and not is_summary(row)]
    found = [n for n, row in enumerate(rows[: asked[-1] if asked else None]) if is_summary(row)]
    return found[-1] if found else None


def without_summary(rows):
    """The rows without that summary, and where it stood."""
    place = in_front(rows)
    return (rows, 0) if place is None else (rows[:place] + rows[place + 1 :], place)


def mandatory(rows):
    """The rows that are kept whatever the budget."""
    body, start = without_summary(rows)
    asked = [n for n, row in enumerate(body) if row.role == "user" and not is_summary(row)]
    begin = asked[-1] if asked else len(body)
    said = [
        n
        for n in range(start, begin)
        if body[n].role == "assistant" and (body[n].content or "").strip()
    ]
    begin = said[-1] if said else begin
    return body[max(n for n in range(begin + 1) if may_part(body, n)) :]


def same(left, right):
    """Whether both have the same objects."""
    return list(map(id, left)) == list(map(id, right))


# Estimates.


def test_about_four_letters_are_a_token_and_each_chinese_character_is_one():
    assert estimate_tokens([]) == 0
    assert estimate_tokens([user("")]) == 4
    assert estimate_tokens([user(None)]) == 4
    assert estimate_tokens([user("word" * 100)]) == 104
    assert estimate_tokens([user("漢" * 100)]) == 104
    assert estimate_tokens([user("Grüße aus Köln")]) == 4 + 5
    assert estimate_tokens([user("привет")]) == 4 + 4
    assert estimate_tokens([user("\ud800" * 8)]) == 4 + 8


def test_the_ratio_is_applied_to_the_sum_and_rounded_up():
    assert estimate_tokens([user("a"), user("b")]) == 9
    assert estimate_tokens([user("a"), user("b")], ratio=2.0) == 17
    assert estimate_tokens([user("word" * 100)], ratio=0.5) == 52


def test_calls_count_with_names_and_arguments():
    plain = estimate_tokens([reply(None)])
    called = Message(role="assistant", tool_calls=(ToolCall("1", "n" * 40, "a" * 400),) * 2)
    assert estimate_tokens([called]) == plain + 2 * (8 + 10 + 100)


def parts(*given, content=None):
    return estimate_tokens([Message(role="user", content=content, parts=given)]) - 4


def test_text_parts_count_once_however_often_they_are_given():
    text = {"type": "text", "text": "word" * 100}
    assert parts(text) == 100
    assert parts(text, text) == 200
    assert parts(text, content="word" * 100) == 100
    assert parts(text, content="word" * 150) == 150
    assert parts(text, content="word" * 50) == 100


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}},
        {"type": "image", "source": {"type": "base64", "data": "A" * 1_000_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}},
        {"type": "document", "source": {"type": "base64", "data": "A" * 1_000_000}},
        {"type": "video_url", "video_url": {"url": "https://example.org/a"}},
        {"picture": "data:image/png;base64," + "A" * 1_000_000},
        {"type": "tool_result", "content": [{"type": "image", "data": "A" * 1_000_000}]},
    ],
)
def test_what_is_binary_has_a_flat_price(part):
    assert 1_500 <= parts(part) <= 1_510
    assert parts(part, content="word" * 100) == parts(part) + 100


def test_other_structures_count_with_all_that_is_in_them():
    assert parts({"type": "document", "source": {"type": "text", "data": "word" * 1_000}}) > 1_000
    assert parts({"type": "tool_use", "input": {"key" * 400: [1, True, None, 2.5]}}) == 309
    assert parts({"type": ["odd"], "text": {"not": "a text"}}) < 20
    assert parts({"input": "data: no file, only a text that begins so"}) < 20
    deep = inner = {}
    for _ in range(100_000):
        inner["a"] = inner = {}
    assert parts(deep) == 25_000


@given(TRANSCRIPTS, TRANSCRIPTS)
def test_estimates_add_up_but_for_one_rounding(left, right):
    apart = estimate_tokens(left) + estimate_tokens(right)
    assert apart - 1 <= estimate_tokens(left + right) <= apart


def quickest(work, times=5):
    """The processor time of the quickest run, in seconds of a program that is not traced."""
    took = []
    for _ in range(times):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took) if sys.gettrace() is None else min(took) / 20


def test_ten_thousand_messages_are_estimated_in_no_time():
    rows = [user("x" * 400) for _ in range(10_000)]
    assert quickest(lambda: estimate_tokens(rows)) < 0.02


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
def test_limits_are_a_share_of_what_the_output_leaves(given, expected):
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
def test_nonsense_is_refused_in_one_sentence(changed, sentence):
    sound = {"window": 1_000, "max_output": 100, "share": 0.5, "tail_share": 0.2}
    with pytest.raises(ValueError) as refused:
        limits(**sound | changed)
    assert str(refused.value) == sentence


# Cuts.


def test_a_conversation_is_cut_into_head_middle_and_tail():
    rows = stored(
        [user(), reply(), user(), reply(), user(), calls("a"), result("a"), reply(), user()]
    )
    assert cut(rows, tail_tokens=0, protect_first=2) == CompactionPlan(
        rows[:2], rows[2:7], rows[7:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=0) == CompactionPlan([], rows[:7], rows[7:], None)
    assert cut(rows, tail_tokens=0, protect_first=-1) == CompactionPlan(
        [], rows[:7], rows[7:], None
    )


def test_the_head_keeps_within_its_budget_and_never_parts_a_call_from_its_result():
    exchanges = [user(), reply()] * 3
    rows = stored([user(), calls("a"), result("a"), reply(), *exchanges])
    sizes = [estimate_tokens(rows[:end]) for end in range(5)]
    heads = {
        budget: len(cut(rows, tail_tokens=0, protect_first=4, head_tokens=budget).head)
        for budget in (0, *sizes, sizes[-1] + 1)
    }
    assert heads[0] == 0
    assert heads[sizes[1]] == 1
    assert heads[sizes[2]] == 1
    assert heads[sizes[3]] == 3
    assert heads[sizes[4]] == heads[sizes[4] + 1] == 4


def test_the_tail_grows_with_its_budget_until_nothing_is_left_to_summarise():
    rows = stored([user() for _ in range(5)])  # 6.5 tokens each
    sizes = [cut(rows, tail_tokens=budget, protect_first=0) for budget in (0, 12, 13, 19, 20, 26)]
    assert [found and len(found.tail) for found in sizes] == [1, 1, 2, 2, 3, None]


def test_a_summary_in_front_is_taken_out_and_nothing_is_protected_any_more():
    old = summary_message("what was")
    rows = [user(), reply(), old, reply(), reply(), user()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "what was")
    assert cut(rows, tail_tokens=0, protect_first=2) == expected
    assert cut(rows, tail_tokens=0, protect_first=0) == expected
    assert cut(rows, tail_tokens=0, protect_first=5) == expected
    assert cut(rows, tail_tokens=10_000, protect_first=2) == CompactionPlan(
        [], rows[:2], rows[3:], "what was"
    )


def test_only_the_newest_of_several_summaries_is_updated():
    rows = [summary_message("older"), reply(), summary_message("newer"), user(), reply(), user()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "newer")
    assert cut(rows, tail_tokens=0, protect_first=2) == expected


def test_a_summary_is_no_question_of_a_user():
    rows = [user(), reply(), reply(), user(), calls("a"), result("a"), summary_message("late")]
    assert cut(rows, tail_tokens=0, protect_first=0) == CompactionPlan([], rows[:2], rows[2:], None)


def test_a_call_that_nobody_answered_waits_until_the_model_speaks_again():
    unanswered = [user(), reply(), calls("a"), user()]
    assert cut(unanswered, tail_tokens=0, protect_first=0, keep_exchanges=1).tail == unanswered[2:]
    spoken = [user(), calls("a"), user(), reply(), user()]
    assert cut(spoken, tail_tokens=0, protect_first=0, keep_exchanges=1).tail == spoken[4:]
    assert cut(spoken, tail_tokens=0, protect_first=0).tail == spoken[3:]


def test_a_late_result_holds_all_that_stands_between():
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
    assert cut(rows, tail_tokens=0, protect_first=0) == CompactionPlan([], rows[:2], rows[2:], None)


def test_ids_that_are_used_again_belong_to_the_nearest_call():
    turn = [user(), calls("a"), result("a")]
    rows = [*turn, *turn, *turn, reply(), user()]
    assert cut(rows, tail_tokens=0, protect_first=4) == CompactionPlan(
        rows[:4], rows[4:9], rows[9:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:4], rows[4:9], rows[9:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=6) == CompactionPlan(
        rows[:6], rows[6:9], rows[9:], None
    )


def test_a_result_that_came_twice_holds_nothing():
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
    assert cut(rows, tail_tokens=0, protect_first=3) == CompactionPlan(
        rows[:3], rows[3:7], rows[7:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:5], rows[5:7], rows[7:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=6) == CompactionPlan(
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
    assert cut(rows, tail_tokens=0, protect_first=4) == CompactionPlan(
        rows[:1], rows[1:7], rows[7:], None
    )
    assert cut(rows, tail_tokens=0, protect_first=5) == CompactionPlan(
        rows[:5], rows[5:7], rows[7:], None
    )


@pytest.mark.parametrize("rows", [[], [user()], [user(), reply()], [reply(), user(), reply()]])
def test_what_is_short_is_left_alone(rows):
    assert cut(rows, tail_tokens=0, protect_first=0) is None
    assert cut(rows, tail_tokens=0, protect_first=0, keep_exchanges=1) is None


def test_a_single_message_is_worth_a_summary_only_if_it_is_long():
    assert cut([user("x" * 784), reply(), user()], tail_tokens=0, protect_first=0) is None
    rows = [user("x" * 785), reply(), user()]
    assert cut(rows, tail_tokens=0, protect_first=0) == CompactionPlan([], rows[:1], rows[1:], None)


def test_without_a_user_the_last_reply_is_kept():
    rows = [reply(), calls("a"), result("a"), reply(), calls("b"), result("b")]
    assert cut(rows, tail_tokens=0, protect_first=0).tail == rows[3:]
    assert cut(rows, tail_tokens=0, protect_first=0, keep_exchanges=3).tail == rows[3:]
    bare = [calls("a"), result("a"), calls("b"), result("b")]
    assert cut(bare, tail_tokens=0, protect_first=0) == CompactionPlan([], bare, [], None)


@pytest.mark.parametrize("blank", [None, "", " \n"])
def test_a_reply_that_nobody_saw_is_not_the_last_one(blank):
    rows = [user(), user(), reply("seen"), reply(blank), user()]
    assert cut(rows, tail_tokens=0, protect_first=0).tail == rows[2:]
    shown = Message(role="assistant", content=blank, parts=({"type": "image"},))
    rows = [user(), user(), reply("seen"), shown, user()]
    assert cut(rows, tail_tokens=0, protect_first=0).tail == rows[3:]


def test_exchanges_are_counted_by_questions_that_were_answered_together():
    rows = [user(), reply(), user(), user(), calls("a"), result("a"), reply(), user(), reply()]
    found = [
        cut(rows, tail_tokens=10_000, protect_first=0, keep_exchanges=count) for count in range(5)
    ]
    assert [kept and len(kept.tail) for kept in found] == [2, 2, 7, None, None]
    unanswered = [user(), reply(), user()]
    assert cut(unanswered, tail_tokens=0, protect_first=0, keep_exchanges=2) is None


def test_exchanges_are_counted_behind_the_last_summary():
    old = summary_message("what was")
    rows = [user(), reply(), old, reply(), user(), reply(), user(), reply()]
    expected = CompactionPlan([], rows[:2] + rows[3:4], rows[4:], "what was")
    assert cut(rows, tail_tokens=0, protect_first=2, keep_exchanges=9) == expected
    rows = [reply(), user(), old, user(), reply(), user(), reply()]
    expected = CompactionPlan([], rows[:2], rows[3:], "what was")
    assert cut(rows, tail_tokens=0, protect_first=2, keep_exchanges=2) == expected


def test_ten_thousand_messages_are_cut_in_no_time():
    rows = [user(), calls("a"), result("a"), reply()] * 2_500
    assert quickest(lambda: cut(rows, tail_tokens=1_000, protect_first=3)) < 0.1


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_the_pieces_are_the_transcript_without_the_summary_that_is_updated(
    rows, budget, head, kept
):
    found = cut(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    assert same(found.head + found.middle + found.tail, without_summary(rows)[0])
    place = in_front(rows)
    assert found.previous == (None if place is None else summary_text(rows[place]))
    assert len(found.head) <= (head if place is None else 0)
    assert len(found.middle) >= 2 or estimate_tokens(found.middle) > 200


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_no_boundary_parts_a_call_from_its_result(rows, budget, head, kept):
    found = cut(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    body, _ = without_summary(rows)
    assert may_part(body, len(found.head))
    assert may_part(body, len(found.head) + len(found.middle))


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT)
def test_the_tail_has_the_last_question_and_the_reply_before_it(rows, budget, head, kept):
    found = cut(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None)
    asked = [row for row in rows if row.role == "user" and not is_summary(row)]
    if asked:
        assert any(row is asked[-1] for row in found.tail)
    if kept is None:
        needed = mandatory(rows)
        assert same(found.tail[len(found.tail) - len(needed) :], needed)


@given(TRANSCRIPTS, BUDGETS, HEADS)
def test_the_tail_is_all_that_the_budget_allows_and_no_more(rows, budget, head):
    found = cut(rows, tail_tokens=budget, protect_first=head)
    assume(found is not None)
    needed = mandatory(rows)
    assert estimate_tokens(found.tail) <= max(budget, estimate_tokens(needed))
    body, earliest = without_summary(rows)
    start = len(body) - len(found.tail)
    for place in range(earliest, start):
        assert not may_part(body, place) or estimate_tokens(body[place:]) > budget


@given(TRANSCRIPTS, HEADS)
def test_the_head_is_all_that_is_protected_but_for_a_group_that_would_be_parted(rows, head):
    found = cut(rows, tail_tokens=0, protect_first=head)
    assume(found is not None and found.previous is None)
    assert not any(may_part(rows, place) for place in range(len(found.head) + 1, head + 1))


@given(TRANSCRIPTS, st.integers(0, 4))
def test_kept_exchanges_are_kept_whatever_the_budget(rows, kept):
    found = cut(rows, tail_tokens=0, protect_first=0, keep_exchanges=kept)
    assert found == cut(rows, tail_tokens=10**6, protect_first=0, keep_exchanges=kept)
    assume(found is not None)
    body, earliest = without_summary(rows)
    asked = [row.role == "user" and not is_summary(row) for row in body]
    begins = [
        n for n in range(earliest, len(body)) if asked[n] and (n == earliest or not asked[n - 1])
    ]
    assume(begins)
    start = begins[max(0, len(begins) - max(1, kept))]
    assert len(found.tail) == len(body) - max(n for n in range(start + 1) if may_part(body, n))


@given(TRANSCRIPTS, BUDGETS, HEADS, HEADS, KEPT)
def test_a_second_cut_finds_the_summary_of_the_first(rows, budget, head, other_head, kept):
    found = cut(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
    assume(found is not None and not any(map(is_summary, found.tail)))
    once = compacted(found, "so far")
    rows = [*once, reply("x" * 1_000), calls("z"), result("z"), reply("new"), user("new")]
    again = cut(rows, tail_tokens=0, protect_first=other_head)
    assert again.previous == "so far"
    assert again.head == []


@given(TRANSCRIPTS, BUDGETS, HEADS, TEXTS)
def test_compacting_again_and_again_ends_below_any_threshold_that_can_be_met(
    rows, budget, head, summary
):
    frames = [row for row in rows if is_summary(row)] + [summary_message(summary)]
    bound = (
        estimate_tokens(rows[:head])
        + max(estimate_tokens([frame]) for frame in frames)
        + max(budget, estimate_tokens(mandatory(rows)))
        + 200  # a single short message is not worth a summary
    )
    for _ in range(4):
        found = cut(rows, tail_tokens=budget, protect_first=head)
        if found is None:
            break
        rows = compacted(found, summary)
        assert estimate_tokens(rows) <= bound
    else:
        pytest.fail("it went on and on")
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
def test_a_summary_says_what_it_was_made_of(text):
    assert is_summary(summary_message(text))
    assert summary_text(summary_message(text)) == text


@given(SAID)
def test_no_text_gets_out_of_the_fence(text):
    content = summary_message(text).content
    assert content.startswith(f"{SUMMARY_MARK}\n")
    assert content.endswith(f"\n{SUMMARY_END}")
    lowered = content.lower()
    assert lowered.count("[context summary") == 1
    assert lowered.count("[end of context summary") == 1


def test_the_mark_is_one_line_that_says_what_it_is():
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
def test_a_summary_is_known_even_if_its_text_was_changed(content):
    changed = Message(role="user", content=content, provider_data={"hermes": "summary"})
    assert is_summary(changed)
    assert summary_text(changed) == (content or "")


def test_nobody_can_type_or_send_a_summary():
    made = summary_message("so far")
    assert not is_summary(user(made.content))
    assert not is_summary(Message(role="user", content=made.content, provider_data={}))
    assert not is_summary(Message(role="user", provider_data={"hermes": ["summary"]}))
    assert not is_summary(Message(role="assistant", provider_data={"hermes": "summary"}))


# Results.


def test_a_stored_message_keeps_all_but_its_place():
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
    }
    assert set(fields) == set(Message.__struct_fields__)
    row = StoredMessage(id=7, **fields)
    found = CompactionPlan([row], [user()], [row], None)
    assert compacted(found, "s") == [Message(**fields), summary_message("s"), Message(**fields)]


@given(TRANSCRIPTS, BUDGETS, HEADS, KEPT, TEXTS)
def test_head_and_tail_are_kept_to_the_letter(rows, budget, head, kept, summary):
    found = cut(rows, tail_tokens=budget, protect_first=head, keep_exchanges=kept)
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


def test_a_tenth_is_margin_enough():
    assert [shrank(1_000, after) for after in (900, 901)] == [True, False]
