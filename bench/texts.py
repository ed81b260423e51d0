"""The rows that everybody stores: the same sessions, roles and texts in every driver.

Standard library only: the peers' interpreters import it too.
"""

from __future__ import annotations

import itertools
import random

SEED = 20_260_101
DISTINCT = 1024
LENGTH = 400

ONSETS = (
    "b",
    "br",
    "c",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "v",
)
VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
CODAS = ("", "", "", "n", "r", "s", "t", "ll", "nd")


def vocabulary(random_: random.Random, size: int = 5_000) -> list[str]:
    """Pronounceable words, all different."""
    words: dict[str, None] = {}
    while len(words) < size:
        syllables = random_.choice((1, 2, 2, 3))
        word = "".join(random_.choice(ONSETS) + random_.choice(VOWELS) for _ in range(syllables))
        words[word + random_.choice(CODAS)] = None
    return list(words)


def make_texts(count: int = DISTINCT, length: int = LENGTH) -> tuple[str, ...]:
    """Sentences of `length` ASCII bytes whose words are as uneven as a language's (Zipf)."""
    random_ = random.Random(SEED)
    words = vocabulary(random_)
    weights = list(itertools.accumulate(1 / rank for rank in range(2, len(words) + 2)))
    texts = []
    for _ in range(count):
        text = ""
        while len(text) < length:
            sentence = random_.choices(words, cum_weights=weights, k=random_.randint(6, 14))
            text += " ".join(sentence).capitalize() + ". "
        texts.append(text[: length - 1] + ".")
    return tuple(texts)


TEXTS = make_texts()


def session_id(number: int) -> str:
    """Seventeen characters, as long as a real one."""
    return f"bench-{number:011d}"


def role(turn: int) -> str:
    """User and assistant in turn, so that no transcript needs a repair."""
    return "assistant" if turn % 2 else "user"


def text(session: int, turn: int) -> str:
    """What session number `session` says at `turn`."""
    return TEXTS[(session * 31 + turn) % DISTINCT]
