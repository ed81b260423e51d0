"""The script of the switching benchmark, and the oracle that knows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from bench import oracle, workload
from bench.workload import Compress, Plan, Restart, Step, Turn, Write

ROOT = Path(__file__).parents[2]
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
SCRIPTS = st.builds(
    workload.script, PLANS, st.sampled_from(sorted(workload.PATTERNS)), st.integers(0, 1_000)
)


@pytest.mark.parametrize("module", ["bench.oracle", "bench.workload", "bench.peers.switch_record"])
def test_the_oracle_imports_nothing_from_hermes(module: str):
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith('hermes')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# The script


@given(SCRIPTS)
def test_a_script_can_be_written_down_and_read(steps: list[Step]):
    assert workload.decode(workload.encode(steps)) == steps


@given(PLANS, st.sampled_from(sorted(workload.PATTERNS)), st.integers(0, 1_000))
def test_the_same_seed_gives_the_same_script(plan: Plan, pattern: str, seed: int):
    assert workload.script(plan, pattern, seed) == workload.script(plan, pattern, seed)


@given(PLANS, st.sampled_from(sorted(workload.PATTERNS)))
def test_everybody_has_his_turns_in_all_of_his_sessions(plan: Plan, pattern: str):
    turns = [step for step in workload.script(plan, pattern) if isinstance(step, Turn)]
    assert [turn.number for turn in turns] == list(range(len(turns)))
    assert len(turns) == workload.openings(plan) + plan.users * plan.turns
    places = {(turn.user, turn.session) for turn in turns[: workload.openings(plan)]}
    assert len(places) == plan.users * plan.sessions
    assert {(turn.user, turn.session) for turn in turns} == places


@given(SCRIPTS)
def test_what_is_written_elsewhere_is_shown_before_it_can_be_summed_up(steps: list[Step]):
    unseen: set[tuple[int, int]] = set()
    for step in steps:
        if isinstance(step, Turn):
            unseen.discard((step.user, step.session))
        if isinstance(step, Turn | Write) and step.mark is not None:
            unseen.add((step.user, step.session))
        if isinstance(step, Compress):
            assert (step.user, step.session) not in unseen


@given(SCRIPTS)
def test_every_mark_is_another(steps: list[Step]):
    marks = [s.mark for s in steps if isinstance(s, Turn | Write) and s.mark is not None]
    assert len(marks) == len(set(marks))


def test_only_one_pattern_has_restarts():
    plan = Plan(users=2, sessions=2, turns=20, restarts=3)
    restarts = {
        name: sum(isinstance(step, Restart) for step in workload.script(plan, name))
        for name in workload.PATTERNS
    }
    assert restarts == {"round robin": 0, "zipf": 0, "bursts": 0, workload.RESUME: 3}


def test_the_texts_say_what_they_are():
    turn = Turn(user=1, session=2, number=30, word="w30")
    assert workload.turn_of(turn.text) == 30
    assert workload.word_of(turn.text) == "w30"
    assert workload.turn_of(f"Sum this up: {turn.text}") is None
    told = [turn.text, workload.finding("w30"), workload.answer(30), *workload.written(7)]
    tags = ["turn 30", "found 30", "answer 30", "elsewhere 7", "replied 7"]
    assert workload.tags_in(" ".join(told)) == tags
    assert workload.tags_of(Turn(1, 2, 30, "w30", 7)) == [*tags[3:], *tags[:3]]
    assert workload.missing([turn], [None, *told[:2]]) == ["answer 30"]
    assert workload.missing([turn, Write(0, 0, 7)], told) == []


# The oracle: which rebuilds are due


def due(*steps: Step) -> dict[int, str]:
    """With every compression done."""
    numbers = {step.number for step in steps if isinstance(step, Compress)}
    return oracle.rebuilds(steps, numbers).must


def test_a_first_turn_needs_an_agent():
    assert due(Turn(0, 0, 0), Turn(0, 0, 1), Turn(1, 0, 2)) == {0: "cold", 2: "cold"}


def test_a_switch_needs_none():
    assert due(Turn(0, 0, 0), Turn(0, 1, 1), Turn(0, 0, 2)) == {0: "cold"}


def test_a_writing_to_the_session_at_hand_needs_one_at_the_next_turn_and_not_after():
    steps = Turn(0, 0, 0), Write(0, 0, 0), Turn(0, 0, 1), Turn(0, 0, 2)
    assert due(*steps) == {0: "cold", 1: "foreign-write"}


def test_a_writing_during_a_turn_needs_one_at_the_next():
    steps = Turn(0, 0, 0, "w0", 0), Turn(0, 0, 1), Turn(0, 0, 2)
    assert due(*steps) == {0: "cold", 1: "foreign-write"}


@pytest.mark.parametrize(
    "between",
    [
        [Write(0, 1, 1)],  # to another session, which is loaded when the user comes there
        [Write(1, 0, 1)],  # to another user's
        [Compress(0, 0, 1)],  # that was we
        [Write(0, 0, 1), Turn(0, 1, 9)],  # the agent was elsewhere meanwhile
        [Compress(0, 0, 1), Write(0, 0, 1)],  # to a session that the agent was not in yet
    ],
)
def test_what_else_happens_needs_none(between: list[Step]):
    steps = [Turn(0, 0, 0), Turn(1, 1, 1), *between, Turn(0, 0, 10)]
    assert due(*steps) == {0: "cold", 1: "cold"}


def test_who_comes_back_to_what_was_written_meanwhile_may_have_a_new_agent():
    steps = Turn(0, 0, 0), Write(0, 0, 0), Turn(0, 1, 1), Turn(0, 0, 2), Turn(0, 0, 3)
    assert oracle.rebuilds(steps, ()) == oracle.Due({0: "cold"}, {2})


def test_a_compression_that_did_not_take_place_changes_nothing():
    steps = Turn(0, 0, 0), Compress(0, 0, 0), Write(0, 0, 1), Turn(0, 0, 1)
    assert oracle.rebuilds(steps, ()).must == {0: "cold", 1: "foreign-write"}


def test_a_new_process_has_no_agents():
    steps = Turn(0, 0, 0), Write(0, 0, 0), Restart(), Turn(0, 0, 1), Turn(0, 0, 2)
    assert due(*steps) == {0: "cold", 1: "cold"}


def test_a_writing_must_be_shown_in_the_next_turn_of_its_session():
    steps = [
        Turn(0, 0, 0), Write(0, 0, 5), Turn(0, 1, 1), Turn(1, 0, 2), Turn(0, 0, 3, "w3", 6),
        Turn(0, 0, 4), Write(0, 1, 7),
    ]  # fmt: skip
    shown = {"elsewhere 5": 3, "replied 5": 3, "elsewhere 6": 4, "replied 6": 4}
    assert oracle.first_shown(steps) == shown


# The oracle: what a provider can have read before


def test_a_prompt_is_known_as_far_as_one_before_it_in_whole_steps():
    provider = oracle.Provider()
    prompt = bytes(range(256)) * 40
    assert provider.read(prompt) == 0
    assert provider.read(prompt) == len(prompt) // oracle.STEP * oracle.STEP
    assert provider.read(prompt[:6000] + b"!" * 6000) == 6000 // oracle.STEP * oracle.STEP
    assert provider.read(prompt[: oracle.LEAST - 1]) == 0
    assert provider.read(b"!" + prompt) == 0


def reference(prompts: list[bytes]) -> list[int]:
    """What `Provider` answers, by looking at every pair."""
    answers = []
    for place, prompt in enumerate(prompts):
        longest = 0
        for other in prompts[:place]:
            same = 0
            while prompt[same : same + 512] == other[same : same + 512] and same + 512 <= min(
                len(prompt), len(other)
            ):
                same += 512
            longest = max(longest, same)
        answers.append(longest if longest >= 4096 else 0)
    return answers


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from([b"a" * 700, b"b" * 700, b"c" * 700]), max_size=12)))
def test_the_provider_remembers_the_longest_beginning(prompts: list[list[bytes]]):
    texts = [b"".join(parts) for parts in prompts]
    provider = oracle.Provider()
    assert [provider.read(text) for text in texts] == reference(texts)


def test_the_best_is_that_every_prompt_goes_on_where_the_last_one_ended():
    steps = [Turn(0, 0, 0), Turn(0, 0, 1, "w1"), Turn(0, 0, 2)]
    first, asks, found, last = oracle.best(steps, {})
    assert (first.turn, asks.turn, found.turn, last.turn) == (0, 1, 1, 2)
    assert first.cached == 0
    assert first.prompt < asks.prompt < found.prompt < last.prompt
    for before, after in ((first, asks), (asks, found), (found, last)):
        assert before.prompt - 128 <= after.cached <= before.prompt


def test_a_compression_costs_what_comes_behind_what_it_left():
    rest = [{"role": "user", "content": "a summary"}]
    steps = [Turn(0, 0, 0), Turn(0, 0, 1), Compress(0, 0, 1), Turn(0, 0, 2)]
    kept = oracle.best(steps, {})[-1]
    left = oracle.best(steps, {1: rest})[-1]
    assert left.prompt < kept.prompt
    assert left.cached < kept.cached


# The oracle: what a compression may do


def left(*texts: str) -> dict[int, list[oracle.Message]]:
    return {2: [{"role": "user", "content": text} for text in texts]}


SAID = [Turn(0, 0, 0), Write(0, 0, 5), Turn(0, 0, 1), Compress(0, 0, 2)]
OLD = {"turn 0", "answer 0", "elsewhere 5", "replied 5"}
LAST = [Turn(0, 0, 1).text, workload.answer(1)]
RECORD = f"[summary]\n{workload.SUMMARY}"


@pytest.mark.parametrize(
    ("rows", "summed_up", "wrong"),
    [
        ([RECORD, *LAST], OLD, 0),
        ([RECORD, *LAST], OLD - {"turn 0"}, 1),  # gone, and in no summary
        ([RECORD, LAST[1]], OLD, 1),
        ([RECORD, *reversed(LAST)], OLD, 1),
        (LAST, OLD, 1),  # the summary is not there
        ([RECORD, *LAST, LAST[1]], OLD, 1),  # twice
    ],
)
def test_what_is_dropped_without_a_summary_is_found(
    rows: list[str], summed_up: set[str], wrong: int
):
    assert oracle.forgotten(SAID, left(*rows), summed_up) == wrong
