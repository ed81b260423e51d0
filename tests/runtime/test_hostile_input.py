"""Invalid and unusual input."""

from __future__ import annotations

import functools

import pytest
import trio

from hermes import Source
from hermes.errors import HermesError
from hermes.testing import (
    inspect,
    texts_of,
)
from tests.support.runtime import SECONDS, with_threads

VALID = {"key": "k", "text": "hello"}


DEEP = functools.reduce(lambda inner, _: {"a": inner}, range(200), {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""},
        {"key": "k" * 1001},
        {"key": "two\nlines"},
        {"key": "nul\0"},
        {"text": "x" * 1_000_001},
        {"parts": [DEEP]},
        {"parts": [{"type": "image", "data": "x" * 1_000_001}]},
        {"when_busy": "sometimes"},
        {"source": Source(chat_id=5)},
        {"source": Source(5)},
        {"event_id": 5},
        {"key": None},
        {"text": ""},
        {"text": None},
        {"text": b"bytes"},
    ],
    ids=lambda wrong: " ".join(f"{name} {str(value)[:12]!r}" for name, value in wrong.items()),
)
async def test_invalid_input_is_refused_in_one_sentence(start, wrong):
    given_ = {**VALID, **wrong}
    key, text = given_.pop("key"), given_.pop("text")
    async with start() as runtime:
        with trio.fail_after(SECONDS):
            with pytest.raises((HermesError, ValueError, TypeError)) as refused:
                await runtime.ask(key, text, **given_)
            sentence = str(refused.value)
            assert 10 < len(sentence) < 300
            assert "\n" not in sentence
            assert (await runtime.ask("k", "hello")).text == "echo: hello"
            assert inspect(runtime).waiting_callers == 0
            rows = await inspect(runtime).store.open_inbox()
            assert rows == []


@pytest.mark.parametrize(
    "text",
    [" ", "\0", "half \ud800 character", "x" * 999_000, "/" * 1000, "/nothing", "\u202eleft",
     "'; DROP TABLE inbox; --", "{}", "/steer@" + "a" * 100_000, "/new@bot!", "💥" * 1000],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
async def test_any_text_is_answered_and_stored(start, text):
    async with start() as runtime:
        with trio.fail_after(SECONDS):
            reply = await runtime.ask("k", text)
            assert reply.status in {"complete", "command"}
            rows = await runtime.conversation("k").history()
            if reply.status == "complete":
                stored = text.encode(errors="replace").decode().replace("\0", "\ufffd")
                assert rows[0].content == stored
            assert (await runtime.ask("k", "hello")).text == "echo: hello"


@with_threads
async def test_keys_with_special_characters_are_separate_conversations(start):
    keys = ["a:b", "%", "'; --", "🙂", "k" * 1000, "K", "k"]
    async with start() as runtime:
        for key in keys:
            await runtime.ask(key, f"to {key}")
        for key in keys:
            assert texts_of(await runtime.conversation(key).history())[0] == ("user", f"to {key}")


@pytest.mark.parametrize("argument", ["x", "-1", "1.5", "all", "²"])
async def test_undo_with_an_invalid_number_takes_nothing_back(start, argument):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        before = await runtime.conversation("k").history()
        reply = await runtime.ask("k", f"/undo {argument}")
        assert reply.text == "Usage: /undo [number]"
        assert await runtime.conversation("k").history() == before
        assert (await runtime.ask("k", "/undo")).text == "Taken back: hello"
