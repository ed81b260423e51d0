"""The plain screen: what is written around a prompt."""

from __future__ import annotations

import os

import pytest
import trio

from hermes.adapters.console.plain_screen import PlainScreen


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def answered(screen, reader):
    """Show a prompt, to which the user answers as soon as it is visible."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(screen.prompt, "> ")
        shown = await trio.to_thread.run_sync(os.read, reader, 100)
        screen.entered()
    return shown


async def test_an_answer_to_a_prompt_that_comes_at_once_needs_no_new_line(pipe):
    reader, writer = pipe
    screen = PlainScreen(writer, notes=True)
    for _ in range(20):
        assert (await answered(screen, reader)).endswith(b"> ")
        await screen.show("1 2")
        assert os.read(reader, 100) == b"1 2\n"


async def test_what_comes_while_the_user_types_begins_a_line_and_the_prompt_follows(pipe):
    reader, writer = pipe
    screen = PlainScreen(writer, notes=True)
    await screen.prompt("> ")
    await screen.show("news")
    await screen.restore_prompt()
    assert os.read(reader, 100) == b"> \nnews\n> "
    screen.entered()
    await screen.show("1 2")
    assert os.read(reader, 100) == b"1 2\n"
