"""A model of a provider's prompt cache, for counting cached tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import attrs

BYTES_PER_TOKEN = 4
"""About the average of real tokenizers."""


def count_tokens(prompt: bytes) -> int:
    """Return the number of tokens of a prompt, rounded up."""
    return -(-len(prompt) // BYTES_PER_TOKEN)


@attrs.frozen
class CacheUsage:
    """How many tokens of a prompt were read from the cache, and how many were written to it."""

    read: int = 0
    written: int = 0


class PrefixCache:
    """Caches prefixes of prompts: a prompt is cached as far as it begins like an earlier one.

    Args:
        minimum: Prefixes shorter than this are not cached, in tokens.
        block: Prefixes are cached in blocks of this many tokens.
        ttl: Seconds after its last use when a block is forgotten.
        max_blocks: Maximum number of blocks.
    """

    def __init__(
        self,
        *,
        minimum: int = 1024,
        block: int = 128,
        ttl: float = 300.0,
        max_blocks: int = 200_000,
    ) -> None:
        self._minimum = minimum
        self._block = block
        self._ttl = ttl
        self._max_blocks = max_blocks
        # The key is the hash of everything up to the end of a block, the value its expiry time.
        # `hash` is fast enough: 10 ms for ten thousand messages.
        self._expires: OrderedDict[int, float] = OrderedDict()

    def lookup(self, key: str, prompt: bytes, now: float) -> CacheUsage:
        """Count the cached tokens of a prompt, and add the prompt to the cache.

        Prompts with different keys share nothing.
        """
        blocks = list(self._block_hashes(key, prompt))
        if len(blocks) * self._block < self._minimum:
            return CacheUsage()
        known = 0
        while known < len(blocks) and self._expires.get(blocks[known], now) > now:
            known += 1
        read = known * self._block
        if read < self._minimum:
            read = 0
        self._add(blocks, now + self._ttl)
        return CacheUsage(read, len(blocks) * self._block - read)

    def __len__(self) -> int:
        return len(self._expires)

    def _block_hashes(self, key: str, prompt: bytes) -> Iterator[int]:
        size = self._block * BYTES_PER_TOKEN
        prefix_hash = hash(key)
        for start in range(0, len(prompt) - size + 1, size):
            prefix_hash = hash((prefix_hash, prompt[start : start + size]))
            yield prefix_hash

    def _add(self, blocks: list[int], expires: float) -> None:
        # The last block first: the end of a prompt is evicted before its beginning, which stays
        # useful.
        for block in reversed(blocks):
            self._expires[block] = expires
            self._expires.move_to_end(block)
        while len(self._expires) > self._max_blocks:
            self._expires.popitem(last=False)
