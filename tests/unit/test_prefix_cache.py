"""The cache of a provider, beside a list of all that was ever said to it."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings, strategies as st

from hermes.testing.prefix_cache import TOKEN, PrefixCache, Seen, count

STEP, MINIMUM, SECONDS = 2, 6, 10.0


def common(one, other):
    """How many tokens two prompts have in common at their beginning, in whole steps."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len(list(pairs)) // TOKEN // STEP * STEP


class Remembering:
    """The contract, by comparing with everything."""

    def __init__(self):
        self.seen = []

    def see(self, key, prompt, now):
        whole = len(prompt) // TOKEN // STEP * STEP
        alive = [p for k, p, at in self.seen if k == key and now < at + SECONDS]
        best = max((common(prompt, other) for other in alive), default=0)
        if whole < MINIMUM:
            return Seen()
        self.seen.append((key, prompt, now))
        read = best if best >= MINIMUM else 0
        return Seen(read, whole - read)


# Few words, so that prompts begin alike; not all of them end where a token does.
PROMPTS = st.lists(st.sampled_from([b"aaaa", b"bbbb", b"cc"]), max_size=14).map(b"".join)


@settings(max_examples=300)
@given(
    seen=st.lists(
        st.tuples(st.sampled_from("kl"), PROMPTS, st.sampled_from([0.0, 3.0, 9.9])), max_size=12
    )
)
@example(seen=[("k", b"a" * 32, 0.0), ("k", b"a" * 32, 9.9), ("k", b"a" * 32, 9.9)])
def test_a_prompt_is_read_as_far_as_it_begins_like_an_earlier_one(seen):
    cache = PrefixCache(minimum=MINIMUM, step=STEP, seconds=SECONDS)
    contract = Remembering()
    now = 0.0
    for key, prompt, pause in seen:
        now += pause
        assert cache.see(key, prompt, now) == contract.see(key, prompt, now)


def test_the_numbers_are_those_of_a_provider():
    cache = PrefixCache()
    prompt = bytes(range(250)) * 40
    assert count(prompt) == 2500
    assert cache.see("k", prompt, 0.0) == Seen(0, 2432)
    assert cache.see("k", prompt + b"more", 1.0) == Seen(2432, 0)
    assert cache.see("k", prompt[: 1100 * TOKEN], 2.0) == Seen(1024, 0)
    assert cache.see("k", prompt[: 1023 * TOKEN], 3.0) == Seen()
    assert cache.see("other", prompt, 4.0) == Seen(0, 2432)
    assert cache.see("k", prompt, 301.5) == Seen(1024, 1408)


def test_where_there_is_no_room_the_ends_of_old_prompts_go_first():
    cache = PrefixCache(minimum=1, step=1, max_steps=10)
    old, new = b"a" * TOKEN * 8, b"b" * TOKEN * 5
    cache.see("k", old, 0.0)
    cache.see("k", new, 0.0)
    assert len(cache) == 10
    assert cache.see("k", new, 0.0) == Seen(5, 0)
    assert cache.see("k", old, 0.0) == Seen(5, 3)
