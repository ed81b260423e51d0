"""Attachments in the size of a conversation and in its search: never as bytes or JSON."""

from __future__ import annotations

import pytest

from hermes import Attachment, Config
from hermes.config import CompressionConfig
from hermes.testing import DeterministicCompressor
from tests.support.model_files import PDF, png


async def test_the_size_of_a_conversation_counts_images_by_their_dimensions(start):
    large = png(1000, 1000, padding=bytes(100_000))
    async with start() as runtime:
        await runtime.ask("k", "hi")
        conversation = runtime.conversation("k")
        before = (await conversation.status()).context_tokens
        await runtime.ask("k", "hi", attachments=[Attachment(data=large)])
        after = (await conversation.status()).context_tokens
    assert 1_334 < after - before < 1_400


@pytest.mark.parametrize(("width", "compressed"), [(1000, True), (100, False)])
async def test_images_fill_the_window(start, width, compressed):
    """Ten of them have over ten thousand tokens, or two thousand if they are small."""
    limits = CompressionConfig(window=10_000, max_output=1_000)
    compressor = DeterministicCompressor()
    async with start(config=Config(compression=limits), compressor=compressor) as runtime:
        for number in range(10):
            image = Attachment(data=png(width, width, padding=bytes([number])))
            await runtime.ask("k", "hi", attachments=[image])
    assert bool(compressor.requests) == compressed


async def test_the_search_finds_no_json_of_parts(start):
    async with start() as runtime:
        files = [Attachment(data=PDF, name="report.pdf"), Attachment(data=png())]
        await runtime.ask("k", "a heron", attachments=files)
        await runtime.ask("k", "", attachments=files)
        assert await runtime.conversation("k").search("heron")
        for word in ("media_type", "application", "file", "image", "png"):
            assert not await runtime.conversation("k").search(word, role="user")
