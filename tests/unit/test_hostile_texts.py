"""Functions that read texts of others take linear time, whatever the text is.

What they do happens mostly in C: in regular expressions, slices and joins. Python offers no count
of that work, so these tests compare processor times of this thread, measured in one run, and not
with the clock: a text that is 16 times longer may take at most 64 times as long. Quadratic work
takes 256 times as long. Other load on the machine does not count, and a measurement that fails is
repeated before it is believed.
"""

from __future__ import annotations

import functools
import gc
import re
import time

import pytest

from tests.support.hostile_texts import ASSEMBLING, FRAMES, FUNCTIONS, UNITS, hostile

LONGER = 16
FACTOR = 4 * LONGER
SIZES = [2**exponent for exponent in range(14, 21, 2)]  # compared with 1 kB to 64 kB
ENOUGH = 0.001
"""Processor seconds after which no longer text is tried, in the short form."""
QUICK = 5e-8
"""Processor seconds per character that are always allowed: new memory for a long text takes some of
them, which a short text does not need."""
PLENTY = 0.05
"""The same in the long form, where a small quadratic part shows beside a large linear one."""
TEXTS = [(unit, frame) for unit in UNITS for frame in FRAMES]


@pytest.fixture(autouse=True)
def without_garbage_collection():
    """A collection takes as long as the objects of all other tests require."""
    gc.disable()
    yield
    gc.enable()


def seconds(function, text):
    began = time.thread_time()
    function(text)
    return time.thread_time() - began


def quickest(function, text):
    return min(seconds(function, text) for _ in range(3))


def grows(function, make, size, taken):
    """Return a description if a text of this size takes more than linear time, else None."""
    before = quickest(function, make(size // LONGER))
    allowed = max(FACTOR * before, QUICK * size)
    if taken <= allowed or quickest(function, make(size)) <= allowed:
        return None
    return f"{before:.6f} s for {size // LONGER}, {taken:.6f} s for {size} characters"


def first_growth(function, make, enough=ENOUGH):
    """Try longer and longer texts, until one takes long enough for a judgement."""
    for size in SIZES:
        taken = seconds(function, make(size))
        if taken > enough:
            return grows(function, make, size, taken)
    return None


def growths(name, texts, enough):
    """Return the texts for which a function takes more than linear time."""
    function = (FUNCTIONS | ASSEMBLING)[name]
    function(hostile("a", FRAMES[0], 1000))  # what is compiled at the first call
    made = {text: functools.partial(hostile, *text) for text in texts}
    found = {text: first_growth(function, make, enough) for text, make in made.items()}
    return {text: growth for text, growth in found.items() if growth is not None}


@pytest.mark.parametrize("name", [*FUNCTIONS, *ASSEMBLING])
def test_the_time_grows_with_the_length_and_not_faster(name, prove):
    start = sum(map(ord, name))
    some = [(unit, FRAMES[(start + at) % len(FRAMES)]) for at, unit in enumerate(UNITS)]
    assert growths(name, TEXTS if prove else some, ENOUGH) == {}
    if prove:
        assert growths(name, some, PLENTY) == {}


@pytest.mark.parametrize("unit", ["a ", "\\", "data:"])
@pytest.mark.parametrize("name", ASSEMBLING)
def test_a_long_text_is_assembled_of_short_pieces_in_linear_time(name, unit):
    make = functools.partial(hostile, unit, FRAMES[0])
    function = ASSEMBLING[name]
    assert grows(function, make, SIZES[-1], seconds(function, make(SIZES[-1]))) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda text: sum(1 for position in range(0, len(text), 64) for _ in text[position:]),
        re.compile("a+b").findall,
    ],
    ids=["loops", "backtracking"],
)
def test_quadratic_work_is_found(function):
    assert first_growth(function, lambda size: "a" * size) is not None
