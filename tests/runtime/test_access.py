"""A runtime whose adapters strangers could reach does not start without an access policy."""

from __future__ import annotations

import asyncio

import pytest

import hermes
from hermes import AccessPolicy, Inbound, Source
from hermes.testing import MemoryAdapter, inspect

REFUSED = "the adapter of 'web' is not local: pass access="


async def reply(turn):
    return f"echo: {turn.text}"


class Unmarked:
    """An adapter that does not say whether it is local."""

    platform = "web"

    async def send(self, row, /):
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize("adapter", [Unmarked(), MemoryAdapter("web", local=False)])
@pytest.mark.sqlite_only("no file is created")
async def test_a_network_adapter_needs_an_access_policy(start, path, adapter):
    with pytest.raises(ValueError, match=REFUSED):
        async with start(agent=reply, adapters=[MemoryAdapter(), adapter]):
            pass
    assert not path.exists(), "nothing is opened"
    async with start(agent=reply, adapters=[adapter], access=AccessPolicy()):
        pass


def test_also_in_the_other_hosts(path):
    async def main():
        async with hermes.embed.open_runtime_asyncio(path, agent=reply, adapters=[Unmarked()]):
            pass

    with pytest.raises(ValueError, match=REFUSED):
        asyncio.run(main())
    with pytest.raises(ValueError, match=REFUSED):
        with hermes.embed.start_runtime(path, agent=reply, adapters=[Unmarked()]):
            pass


async def test_everyone_is_a_guest_of_a_public_bot(start):
    adapter = MemoryAdapter("web", local=False)
    source = Source("web", chat_id="7", user_id="stranger")
    async with start(agent=reply, adapters=[adapter], access=AccessPolicy.everyone()) as runtime:
        assert (await runtime.ask("k", "hello", source=source)).text == "echo: hello"
        await inspect(runtime).wait_sent()
        assert [row.body["text"] for row in adapter.sent] == ["echo: hello"]
        with pytest.raises(hermes.NotAdmitted):
            await runtime.submit(Inbound("k", "e", "/pair", source, command=True))
