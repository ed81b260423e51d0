"""A text of any length arrives whole, or not at all."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from hermes.store.postgres.payloads import LIMIT, Joiner, split

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
LENGTHS = st.sampled_from([0, 1, 7, 300, 4000, 9000])


@given(text=TEXTS, times=LENGTHS, randomness=st.randoms(use_true_random=False))
def test_a_text_arrives_whole_in_any_order_and_with_repetitions(text, times, randomness):
    whole = text * times
    payloads = split("ab12", 7, whole)
    assert all(len(payload.encode()) <= LIMIT for payload in payloads)
    twice = [*payloads[:-1], *payloads]
    randomness.shuffle(twice)
    joiner = Joiner()
    assert next(found for each in twice if (found := joiner.add(each)) is not None) == whole


@given(texts=st.lists(st.integers(0, 40_000), min_size=1, max_size=6), data=st.data())
def test_texts_without_all_their_payloads_never_arrive(texts, data):
    joiner = Joiner()
    for number, length in enumerate(texts):
        whole = "é" * length
        payloads = split("0", number, whole)
        lost = data.draw(st.sampled_from([None, *range(len(payloads))]))
        arrived = [joiner.add(each) for at, each in enumerate(payloads) if at != lost]
        assert [text for text in arrived if text is not None] == ([whole] if lost is None else [])


def test_the_oldest_incomplete_text_is_forgotten_if_too_much_waits():
    joiner = Joiner(max_size=10_000)
    first, second = split("a", 1, "x" * 15_000), split("a", 2, "y" * 15_000)
    for payload in [*first[:-1], *second[:-1]]:
        assert joiner.add(payload) is None
    assert joiner.size <= 10_000
    assert joiner.add(second[-1]) == "y" * 15_000
    assert joiner.add(first[-1]) is None


def test_memory_is_bounded_whatever_is_lost():
    joiner, chance = Joiner(max_size=50_000), random.Random(1)
    for number in range(500):
        for payload in split("a", number, "x" * 30_000):
            if chance.random() < 0.7:
                joiner.add(payload)
        assert joiner.size <= 50_000
    joiner.clear()
    assert joiner.size == 0


def test_payloads_of_others_are_ignored():
    joiner = Joiner()
    assert [joiner.add(text) for text in ("", "hello", "a 1 1", "a 1 x/y z")] == [None] * 4
