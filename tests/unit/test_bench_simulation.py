"""The simulation of a node, where the answer is known, and what must hold of every run."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from bench import capacity
from bench.simulation import (
    Clock,
    Costs,
    Model,
    Node,
    People,
    Processor,
    Writer,
    closed,
    home,
    opened,
    shares,
    watch,
)

ALWAYS = Model()


def queue(load, spread, jobs=50_000):
    """How long jobs of mean 1 take at one interpreter, in all, when they come by chance."""
    clock, random, took = Clock(), Random(1), []
    processor = Processor(clock, random, spread)
    when = 0.0
    for _ in range(jobs):
        when += random.expovariate(load)
        clock.at(when, lambda when=when: processor.work(1.0, lambda: took.append(clock.now - when)))
    clock.run()
    assert processor.busy == pytest.approx(load * when, rel=0.03)
    return sorted(took)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_a_queue_is_as_long_as_pollaczek_and_khinchine_say(load, spread):
    took = queue(load, spread)
    wait = load * (1 + spread) / 2 / (1 - load)
    assert sum(took) / len(took) - 1 == pytest.approx(wait, rel=0.08)


def test_exponential_work_takes_an_exponential_time():
    took = queue(0.5, 1.0)
    assert took[len(took) // 2] == pytest.approx(math.log(2) / 0.5, rel=0.05)
    assert took[len(took) * 99 // 100] == pytest.approx(math.log(100) / 0.5, rel=0.08)


def test_one_session_without_a_pause_takes_the_sum_of_its_costs():
    costs = Costs(accept=1.0, run=2.0, commit=0.25, flush=0.5, call=4.0)
    model = Model(median=8.0, calls=3)
    node = Node(costs, model, Random(1))
    closed(node, 1)
    seen = watch(node, 0.0, 1000.0)
    own = 1 + 2 + 3 * 4 + 2 * (0.25 + 0.5)
    assert own == capacity.alone(costs, 3)
    assert {round(turn.own, 9) for turn in seen.turns} == {own}
    assert {round(after.ended - turn.ended, 9) for turn, after in pairwise(seen.turns)} == {
        own + 24
    }
    assert seen.batch == 1.0


def test_a_commit_is_for_all_who_wait_when_it_begins():
    clock, done = Clock(), []
    writer = Writer(clock, Processor(clock, Random(1)), Costs(0.0, 0.0, commit=1.0, flush=2.0))
    for when, name in ((0.0, "first"), (0.5, "second"), (2.9, "third"), (10.0, "last")):
        clock.at(when, lambda name=name: writer.ask(lambda: done.append((clock.now, name))))
    clock.run()
    assert done == [(3.0, "first"), (6.0, "second"), (6.0, "third"), (13.0, "last")]
    assert (writer.commits, writer.requests) == (3, 4)


def test_the_interpreter_does_one_thing_at_a_time_in_the_order_they_came():
    clock, done = Clock(), []
    processor = Processor(clock, Random(1))
    for when, name in ((0.0, "a"), (1.0, "b"), (9.0, "c")):
        clock.at(
            when, lambda name=name: processor.work(3.0, lambda: done.append((clock.now, name)))
        )
    clock.run()
    assert done == [(3.0, "a"), (6.0, "b"), (12.0, "c")]
    assert processor.busy == 9.0


def test_what_comes_while_a_turn_runs_becomes_one_next_turn():
    node = Node(Costs(accept=0.0, run=0.0), Model(median=10.0, calls=1), Random(1))
    for when, key in ((0.0, 7), (1.0, 7), (2.0, 7), (2.5, 8)):
        node.clock.at(when, lambda key=key: node.arrive(key))
    node.clock.run()
    assert [(turn.key, turn.messages, turn.begun, turn.ended) for turn in node.turns] == [
        (7, 1, 0.0, 10.0),
        (8, 1, 2.5, 12.5),
        (7, 2, 10.0, 20.0),
    ]


def test_a_flush_leaves_the_interpreter_free():
    costs = Costs(accept=1.0, run=0.0, flush=100.0)
    node = Node(costs, ALWAYS, Random(1))
    node.arrive(1)
    node.clock.at(1.0, lambda: node.arrive(2))
    node.clock.run(50.0)
    assert node.processor.busy == 2.0
    node.clock.run()
    # accept of 1, accept of 2, end of 1, end of 2: nobody joins a commit that has begun
    assert [turn.ended for turn in node.turns] == [301.0, 401.0]


seconds = st.floats(0, 0.1, allow_subnormal=False)
costs_ = st.builds(
    Costs,
    accept=seconds,
    run=seconds,
    commit=seconds,
    flush=seconds,
    call=seconds,
    spread=st.sampled_from([0.0, 0.3, 1.0]),
)
models = st.builds(
    Model, median=st.floats(0, 1), sigma=st.sampled_from([0.0, 0.8]), calls=st.integers(0, 3)
)
arrivals = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4)), min_size=1, max_size=60)


@settings(deadline=None)
@given(costs_, models, arrivals, st.integers())
def test_every_message_has_one_turn_and_no_session_two_at_once(costs, model, messages, seed):
    node = Node(costs, model, Random(seed))
    answered = []
    for when, key in messages:
        node.clock.at(when, lambda key=key: node.arrive(key, lambda: answered.append(key)))
    node.clock.run()
    assert sorted(answered) == sorted(key for _, key in messages)
    assert sum(turn.messages for turn in node.turns) == len(messages)
    assert node.writer.requests == len(messages) + len(node.turns)
    assert node.writer.commits <= node.writer.requests
    for own in {turn.key for turn in node.turns}:
        ordered = sorted((t for t in node.turns if t.key == own), key=lambda turn: turn.begun)
        assert all(turn.ended <= after.begun for turn, after in pairwise(ordered))


@settings(deadline=None)
@given(costs_, models, arrivals)
def test_no_work_is_lost_or_invented(costs, model, messages):
    costs = attrs.evolve(costs, spread=0.0)
    node = Node(costs, model, Random(1))
    for when, key in messages:
        node.clock.at(when, lambda key=key: node.arrive(key))
    node.clock.run()
    turn = costs.run + model.calls * costs.call
    paid = (
        len(messages) * costs.accept + len(node.turns) * turn + node.writer.commits * costs.commit
    )
    assert node.processor.busy == pytest.approx(paid)
    least = 2 * (costs.commit + costs.flush) + turn
    assert all(one.own >= least - 1e-9 for one in node.turns)


def test_the_same_seed_gives_the_same_and_another_does_not():
    costs, model = Costs(0.1, 0.1, 0.01, 0.01, 0.1, spread=1.0), Model(1.0, 0.6, 1)
    runs = []
    for seed in (1, 1, 2):
        random = Random(seed)
        node = Node(costs, model, random)
        opened(node, People(range(1000), 2.0), random)
        runs.append(watch(node, 0.0, 200.0).turns)
    first, again, other = runs
    assert first == again
    assert first != other


def test_people_write_as_often_as_said_evenly_or_in_bursts():
    for burst, gap in ((1, 0.0), (3, 2.0)):
        random = Random(1)
        node = Node(Costs(0.0, 0.001), ALWAYS, random)
        opened(node, People(range(1000), 10.0, burst, gap), random)
        assert watch(node, 100.0, 2000.0).messages == pytest.approx(20_000, rel=0.05)


def test_a_lognormal_model_has_the_mean_it_says():
    model, random = Model(2.0, 0.6, 3), Random(1)
    drawn = [model.draw(random) for _ in range(50_000)]
    assert 3 * sum(drawn) / len(drawn) == pytest.approx(model.mean, rel=0.02)


def test_a_new_node_takes_keys_and_moves_no_others():
    for key in range(2_000):
        assert home(key, 5) in {home(key, 4), 4}
    assert sorted(key for own in shares(range(100), 3) for key in own) == list(range(100))
