"""A long text is redacted in slices: like the whole text, with checkpoints, and once."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, strategies as st

from hermes.messages import Message, ToolCall
from hermes.redaction import (
    REDACTED,
    ValueRedactor,
    redact_keys,
    redact_message,
    redact_messages,
)
from hermes.redaction.slices import (
    MAX_KNOWN,
    SLICE,
    KnownTexts,
    prepare,
    redact_text,
    redact_text_keys,
)
from tests.support.examples import examples
from tests.support.secrets import DISGUISES, ENCODINGS, SECRET, TOKEN

FORMS = {**ENCODINGS, **DISGUISES}
FILLERS = ["a ", "tok_A1 ", "%41", "\\", "t\n", "&amp;", "日", "d"]


def in_slices(redact, text):
    """Return the redacted text after it was redacted in slices, and the number of steps."""
    steps = len(list(redact.redact_slices(text)))
    return redact(text), steps


def at_a_border(encoded, filler, position):
    """Return a text in which a secret begins this far before the end of the first slice."""
    before = (filler * SLICE)[: SLICE - position - 1]
    return f"{before} {encoded} {filler * (SLICE // 2)}"


@examples(200)
@given(st.sampled_from(sorted(FORMS)), st.sampled_from(FILLERS), st.integers(-3, 160))
def test_slices_give_the_same_result_as_the_whole_text(form, filler, position):
    text = at_a_border(FORMS[form](TOKEN), filler, position)
    whole = ValueRedactor([TOKEN])(text)
    assert REDACTED in whole
    assert in_slices(ValueRedactor([TOKEN]), text)[0] == whole


@examples(100)
@given(st.sampled_from(sorted(ENCODINGS)), st.sampled_from(FILLERS), st.integers(-3, 160))
def test_no_encoded_secret_passes_at_a_border(encoding, filler, position):
    encoded = ENCODINGS[encoding](SECRET)
    redacted, _ = in_slices(ValueRedactor([SECRET]), at_a_border(encoded, filler, position))
    assert encoded not in redacted
    assert REDACTED in redacted


def test_what_is_known_is_not_searched_again():
    redact = ValueRedactor([TOKEN])
    text = f"{TOKEN} {'a ' * SLICE}"
    redacted, steps = in_slices(redact, text)
    assert redacted.startswith(f"{REDACTED} a ")
    assert steps > len(text) // SLICE
    assert redact(text) is redacted
    assert redact(redacted) is redacted
    assert [*redact.redact_slices(text), *redact.redact_slices(redacted)] == []


def test_only_the_last_long_texts_are_remembered():
    known, count = KnownTexts(), 2 * MAX_KNOWN // SLICE
    texts = [f"{number} {'a' * SLICE}" for number in range(count)]
    for text in texts:
        known.add(text, text)
    found = [text for text in texts if known.get(text) is not None]
    assert found == texts[-len(found) :]
    assert MAX_KNOWN - 2 * SLICE < sum(map(len, found)) <= MAX_KNOWN
    huge = "a" * (MAX_KNOWN + 1)
    known.add(huge, huge)
    assert known.get(huge) is huge
    known.add("short", "…")
    assert known.get("short") is None


@pytest.mark.parametrize("where", ["content", "reasoning", "arguments", "details", "key"])
async def test_other_tasks_run_while_a_long_text_is_prepared(where):
    long = f"{'a ' * 4 * SLICE} {TOKEN}"
    message = {
        "content": Message("assistant", long),
        "reasoning": Message("assistant", reasoning=long),
        "arguments": Message("assistant", tool_calls=(ToolCall("c", "f", long),)),
        "details": Message("assistant", reasoning_details=({"text": [long]},)),
        "key": Message("assistant", reasoning_details=({long: 1},)),
    }[where]
    redact = ValueRedactor([TOKEN])
    turns, _ = await others_run(prepare(message, redact))
    assert turns >= len(long) // SLICE
    assert redact_message(message, redact) != message
    assert REDACTED in redact(long)


async def others_run(work):
    """Await the work; returns how often another task ran meanwhile, and the result."""
    turns = 0
    async with trio.open_nursery() as nursery:

        async def count():
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        result = await work
        nursery.cancel_scope.cancel()
    return turns, result


@pytest.mark.parametrize("filler", FILLERS)
async def test_other_tasks_run_while_a_long_text_is_redacted(filler):
    text = at_a_border(TOKEN, filler, 20) + "a " * 2 * SLICE
    redact = ValueRedactor([TOKEN])
    whole = redact(text)
    turns, redacted = await others_run(redact_text(text, ValueRedactor([TOKEN])))
    assert (turns > 0, redacted) == (True, whole)
    messages = [Message("assistant", text), Message("assistant", "short")]
    turns, redacted = await others_run(redact_messages(messages, ValueRedactor([TOKEN])))
    assert turns > 0
    assert [message.content for message in redacted] == [whole, "short"]


@pytest.mark.parametrize("position", [-3, 1, 10, 50])
@pytest.mark.parametrize("filler", ["a ", "sk-", "sk-proj-", "日"])
async def test_other_tasks_run_while_a_long_text_is_searched_for_keys(filler, position):
    text = at_a_border(f"sk-{'A1b2' * 10}", filler, position) + "a " * 2 * SLICE
    turns, redacted = await others_run(redact_text_keys(text))
    assert (turns > 0, redacted) == (True, redact_keys(text))
    assert await redact_text_keys("") == ""


async def test_a_plain_function_is_not_called_to_prepare():
    def redact(text):
        raise AssertionError(text)

    await prepare("a" * 2 * SLICE, redact)
    await trio.lowlevel.checkpoint()
