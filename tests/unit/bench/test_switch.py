"""The script of the switching benchmark, and the oracle that judges its contenders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from bench.switch import workload
from bench.switch.oracle import Oracle, Provider
from bench.switch.workload import Compress, Plan, Restart, Turn, Write

ROOT = Path(__file__).parents[3]
PLANS = st.builds(
    Plan,
    users=st.integers(1, 3),
    sessions=st.integers(1, 4),
    turns=st.integers(1, 30),
    tools=st.floats(0.1, 1.0),
    writes=st.floats(0.0, 0.4),
    compressions=st.floats(0.0, 0.5),
    restarts=st.integers(0, 3),
)
PATTERNS = st.sampled_from(sorted(workload.PATTERNS))


@pytest.mark.parametrize("module", ["bench.switch.oracle", "bench.switch.performer"])
def test_the_oracle_imports_nothing_from_hermes(module):
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith('hermes')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# The script


@given(PLANS, PATTERNS, st.integers(0, 1_000))
def test_a_script_is_reproducible_and_complete(plan, pattern, seed):
    steps = workload.script(plan, pattern, seed)
    assert steps == workload.script(plan, pattern, seed)
    turns = [step for step in steps if isinstance(step, Turn)]
    assert [turn.number for turn in turns] == list(range(len(turns)))
    assert len(turns) == workload.opening_turns(plan) + plan.users * plan.turns
    places = {(turn.user, turn.session) for turn in turns[: workload.opening_turns(plan)]}
    assert len(places) == plan.users * plan.sessions
    assert {(turn.user, turn.session) for turn in turns} == places
    marks = [s.mark for s in steps if isinstance(s, Turn | Write) and s.mark is not None]
    assert len(marks) == len(set(marks))


@given(PLANS, PATTERNS)
def test_messages_of_the_other_writer_are_shown_before_they_can_be_summarized(plan, pattern):
    unseen = set()
    for step in workload.script(plan, pattern):
        if isinstance(step, Turn):
            unseen.discard((step.user, step.session))
        if isinstance(step, Turn | Write) and step.mark is not None:
            unseen.add((step.user, step.session))
        if isinstance(step, Compress):
            assert (step.user, step.session) not in unseen


def test_one_pattern_has_restarts():
    plan = Plan(users=2, sessions=2, turns=20, compressions=0.2)
    restarts = {}
    for pattern in workload.PATTERNS:
        steps = workload.script(plan, pattern)
        restarts[pattern] = sum(isinstance(step, Restart) for step in steps)
    assert restarts == {"round robin": 0, "zipf": 0, "bursts": 0, workload.RESUME: 3}


def test_messages_are_recognized_by_their_tags():
    turn = Turn(user=1, session=2, number=30, word="w30")
    assert workload.turn_of(turn.text) == 30
    assert workload.word_of(turn.text) == "w30"
    assert workload.turn_of(f"Summarize: {turn.text}") is None
    texts = [turn.text, workload.finding("w30"), workload.answer(30), *workload.written(7)]
    tags = ["turn 30", "found 30", "answer 30", "elsewhere 7", "replied 7"]
    assert workload.tags_in(" ".join(texts)) == tags
    assert workload.tags_of(Turn(1, 2, 30, "w30", 7)) == [*tags[3:], *tags[:3]]
    assert workload.missing([turn], [None, *texts[:2]]) == ["answer 30"]
    assert workload.missing([turn, Write(0, 0, 7)], texts) == []


def test_each_process_performs_the_steps_between_restarts():
    steps = [Turn(0, 0, 0), Restart(), Turn(0, 0, 1), Compress(0, 0, 1), Restart(), Turn(0, 0, 2)]
    assert workload.parts(steps) == [steps[:1], steps[2:4], steps[5:]]


def test_messages_that_are_in_no_row_are_missing():
    steps = [Turn(0, 0, 0), Turn(0, 0, 1, "w1", mark=2), Write(0, 0, 7)]
    stored = [steps[0].text, workload.answer(0), steps[1].text, workload.written(7)[1], None]
    gone = ["elsewhere 2", "replied 2", "found 1", "answer 1", "elsewhere 7"]
    assert workload.missing(steps, stored) == gone


# The oracle: when an agent must be rebuilt


def due(*steps):
    """The required builds if every compression took place."""
    numbers = {step.number for step in steps if isinstance(step, Compress)}
    return Oracle(steps, numbers).must


COLD, WRITTEN = "cold", "foreign-write"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([Turn(0, 0, 0), Turn(0, 0, 1), Turn(1, 0, 2)], {0: COLD, 2: COLD}),
        ([Turn(0, 0, 0), Turn(0, 1, 1), Turn(0, 0, 2)], {0: COLD}),
        ([Turn(0, 0, 0), Write(0, 0, 0), Turn(0, 0, 1), Turn(0, 0, 2)], {0: COLD, 1: WRITTEN}),
        ([Turn(0, 0, 0, "w0", 0), Turn(0, 0, 1), Turn(0, 0, 2)], {0: COLD, 1: WRITTEN}),
        ([Turn(0, 0, 0), Write(0, 0, 0), Restart(), Turn(0, 0, 1), Turn(0, 0, 2)],
         {0: COLD, 1: COLD}),
    ],
    ids=["first turn", "switch", "write before a turn", "write during a turn", "restart"],
)  # fmt: skip
def test_an_agent_must_be_built(steps, expected):
    assert due(*steps) == expected


@pytest.mark.parametrize(
    "between",
    [
        [Write(0, 1, 1)],  # to another session, which is loaded when the user comes there
        [Write(1, 0, 1)],  # to a session of another user
        [Compress(0, 0, 1)],  # our own
        [Write(0, 0, 1), Turn(0, 1, 9)],  # the agent was in another session meanwhile
        [Compress(0, 0, 1), Write(0, 0, 1)],  # to a session that the agent has not seen
    ],
)
def test_nothing_else_requires_a_build(between):
    steps = [Turn(0, 0, 0), Turn(1, 1, 1), *between, Turn(0, 0, 10)]
    assert due(*steps) == {0: COLD, 1: COLD}


def test_a_return_to_a_session_that_was_written_to_may_build():
    steps = Turn(0, 0, 0), Write(0, 0, 0), Turn(0, 1, 1), Turn(0, 0, 2), Turn(0, 0, 3)
    found = Oracle(steps)
    assert (found.must, found.may) == ({0: COLD}, {2})


def test_a_compression_that_did_not_take_place_changes_nothing():
    steps = Turn(0, 0, 0), Compress(0, 0, 0), Write(0, 0, 1), Turn(0, 0, 1)
    assert Oracle(steps).must == {0: COLD, 1: WRITTEN}


def test_a_written_message_must_be_shown_in_the_next_turn_of_its_session():
    steps = [
        Turn(0, 0, 0), Write(0, 0, 5), Turn(0, 1, 1), Turn(1, 0, 2), Turn(0, 0, 3, "w3", 6),
        Turn(0, 0, 4), Write(0, 1, 7),
    ]  # fmt: skip
    shown = {"elsewhere 5": 3, "replied 5": 3, "elsewhere 6": 4, "replied 6": 4}
    assert Oracle(steps).shown == shown


# The oracle: what a provider can have cached


def longest_prefixes(prompts):
    """What `Provider` returns, by comparing every pair of prompts."""
    for place, prompt in enumerate(prompts):
        longest = 0
        for other in prompts[:place]:
            same = 0
            while prompt[same : same + 512] == other[same : same + 512] and same + 512 <= min(
                len(prompt), len(other)
            ):
                same += 512
            longest = max(longest, same)
        yield longest if longest >= 4096 else 0


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from([b"a" * 700, b"b" * 700, b"c" * 700]), max_size=12)))
def test_the_provider_caches_the_longest_prefix_in_whole_blocks(prompts):
    texts = [b"".join(pieces) for pieces in prompts]
    provider = Provider()
    assert [provider.read(text) for text in texts] == list(longest_prefixes(texts))


def test_the_best_prompts_extend_each_other():
    steps = [Turn(0, 0, 0), Turn(0, 0, 1, "w1"), Turn(0, 0, 2)]
    first, asks, found, last = Oracle(steps).requests
    assert (first.turn, asks.turn, found.turn, last.turn) == (0, 1, 1, 2)
    assert first.cached == 0
    assert first.prompt < asks.prompt < found.prompt < last.prompt
    for before, after in ((first, asks), (asks, found), (found, last)):
        assert before.prompt - 128 <= after.cached <= before.prompt
    compressed = [*steps[:2], Compress(0, 0, 1), steps[2]]
    summary = {1: [{"role": "user", "content": "a summary"}]}
    left = Oracle(compressed, {1}, summary).requests[-1]
    assert left.prompt < last.prompt
    assert left.cached < last.cached


# The oracle: what a compression may drop

STEPS = [Turn(0, 0, 0), Write(0, 0, 5), Turn(0, 0, 1), Compress(0, 0, 2)]
OLD = {"turn 0", "answer 0", "elsewhere 5", "replied 5"}
LAST = [Turn(0, 0, 1).text, workload.answer(1)]
RECORD = f"[summary]\n{workload.SUMMARY}"


@pytest.mark.parametrize(
    ("rows", "summarized", "wrong"),
    [
        ([RECORD, *LAST], OLD, 0),
        ([RECORD, *LAST], OLD - {"turn 0"}, 1),  # dropped without a summary
        ([RECORD, LAST[1]], OLD, 1),
        ([RECORD, *reversed(LAST)], OLD, 1),
        (LAST, OLD, 1),  # the summary is missing
        ([RECORD, *LAST, LAST[1]], OLD, 1),  # repeated
    ],
)
def test_mistakes_of_a_compression_are_counted(rows, summarized, wrong):
    left = {2: [{"role": "user", "content": row} for row in rows]}
    assert Oracle(STEPS, {2}, left, summarized).forgotten == wrong
