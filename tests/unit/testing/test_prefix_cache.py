"""The prefix cache, compared with a list of all prompts it has seen."""

from __future__ import annotations

import itertools

from hypothesis import example, given, strategies as st

from hermes.testing.prefix_cache import BYTES_PER_TOKEN, CacheUsage, PrefixCache, count_tokens
from tests.support.examples import examples

BLOCK, MINIMUM, TTL = 2, 6, 10.0


def common(one, other):
    """How many tokens two prompts have in common at their beginning, in whole blocks."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len(list(pairs)) // BYTES_PER_TOKEN // BLOCK * BLOCK


class SimpleCache:
    """The same contract, by comparing a prompt with all earlier ones."""

    def __init__(self):
        self.seen = []

    def lookup(self, key, prompt, now):
        whole = len(prompt) // BYTES_PER_TOKEN // BLOCK * BLOCK
        alive = [p for k, p, at in self.seen if k == key and now < at + TTL]
        best = max((common(prompt, other) for other in alive), default=0)
        if whole < MINIMUM:
            return CacheUsage()
        self.seen.append((key, prompt, now))
        read = best if best >= MINIMUM else 0
        return CacheUsage(read, whole - read)


# Few words, so that prompts have common prefixes; not all end with a whole token.
PROMPTS = st.lists(st.sampled_from([b"aaaa", b"bbbb", b"cc"]), max_size=14).map(b"".join)


@examples(300)
@given(
    seen=st.lists(
        st.tuples(st.sampled_from("kl"), PROMPTS, st.sampled_from([0.0, 3.0, 9.9])), max_size=12
    )
)
@example(seen=[("k", b"a" * 32, 0.0), ("k", b"a" * 32, 9.9), ("k", b"a" * 32, 9.9)])
def test_a_prompt_is_cached_up_to_its_common_prefix_with_an_earlier_one(seen):
    cache = PrefixCache(minimum=MINIMUM, block=BLOCK, ttl=TTL)
    simple = SimpleCache()
    now = 0.0
    for key, prompt, pause in seen:
        now += pause
        assert cache.lookup(key, prompt, now) == simple.lookup(key, prompt, now)


def test_the_numbers_are_those_of_a_provider():
    cache = PrefixCache()
    prompt = bytes(range(250)) * 40
    assert count_tokens(prompt) == 2500
    assert cache.lookup("k", prompt, 0.0) == CacheUsage(0, 2432)
    assert cache.lookup("k", prompt + b"more", 1.0) == CacheUsage(2432, 0)
    assert cache.lookup("k", prompt[: 1100 * BYTES_PER_TOKEN], 2.0) == CacheUsage(1024, 0)
    assert cache.lookup("k", prompt[: 1023 * BYTES_PER_TOKEN], 3.0) == CacheUsage()
    assert cache.lookup("other", prompt, 4.0) == CacheUsage(0, 2432)
    assert cache.lookup("k", prompt, 301.5) == CacheUsage(1024, 1408)


def test_if_the_cache_is_full_the_ends_of_old_prompts_are_evicted_first():
    cache = PrefixCache(minimum=1, block=1, max_blocks=10)
    old, new = b"a" * BYTES_PER_TOKEN * 8, b"b" * BYTES_PER_TOKEN * 5
    cache.lookup("k", old, 0.0)
    cache.lookup("k", new, 0.0)
    assert len(cache) == 10
    assert cache.lookup("k", new, 0.0) == CacheUsage(5, 0)
    assert cache.lookup("k", old, 0.0) == CacheUsage(5, 3)
