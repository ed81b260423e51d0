"""The rows that every driver stores: the same sessions, roles and texts for all."""

from __future__ import annotations

import itertools
import random

SEED = 20_260_101
DISTINCT = 1024
LENGTH = 400
ONSETS = (
    "b", "br", "c", "d", "f", "g", "gr", "h", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "v",
)  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
CODAS = ("", "", "", "n", "r", "s", "t", "ll", "nd")


def vocabulary(generator: random.Random) -> list[str]:
    """Return 5,000 distinct, pronounceable words."""
    words: dict[str, None] = {}
    while len(words) < 5_000:
        count = generator.choice((1, 2, 2, 3))
        syllables = [generator.choice(ONSETS) + generator.choice(VOWELS) for _ in range(count)]
        words["".join(syllables) + generator.choice(CODAS)] = None
    return list(words)


def make_texts() -> tuple[str, ...]:
    """Return texts of 400 ASCII characters; word frequencies follow Zipf's law."""
    generator = random.Random(SEED)
    words = vocabulary(generator)
    weights = list(itertools.accumulate(1 / rank for rank in range(2, len(words) + 2)))
    texts = []
    for _ in range(DISTINCT):
        text = ""
        while len(text) < LENGTH:
            sentence = generator.choices(words, cum_weights=weights, k=generator.randint(6, 14))
            text += " ".join(sentence).capitalize() + ". "
        texts.append(text[: LENGTH - 1] + ".")
    return tuple(texts)


TEXTS = make_texts()


def session_id(number: int) -> str:
    """Return an id of 17 characters, the length of a real one."""
    return f"bench-{number:011d}"


def role(turn: int) -> str:
    """Alternate user and assistant, so that no peer has to repair the transcript."""
    return "assistant" if turn % 2 else "user"


def text(session: int, turn: int) -> str:
    """Return the message of a session at a turn."""
    return TEXTS[(session * 31 + turn) % DISTINCT]
