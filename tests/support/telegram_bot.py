"""A Telegram bot on a real runtime, against the loopback Bot API."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import trio

from hermes import AccessPolicy, open_runtime
from hermes.adapters.rate_limit import Rate, RateLimiter
from hermes.adapters.telegram import GroupPolicy, Telegram
from hermes.redaction.keys import Secret
from hermes.testing.telegram import TOKEN

NO_BURSTS = GroupPolicy(burst_seconds=0.0, album_seconds=1.0)


async def echo(turn):
    return f"You said: {turn.text}"


def fast_limiter():
    """A rate limiter that never delays a call."""
    return RateLimiter(per_token=Rate(1000, 1.0), per_chat=Rate(1000, 1.0))


@asynccontextmanager
async def running_bot(
    server, path, agent=echo, *, config=None, wrap_runtime=None, access=None, **options
):
    """Run a bot; `wrap_runtime` may put something in front of its runtime."""
    options = {
        "group_policy": NO_BURSTS,
        "rate_limiter": fast_limiter(),
        "preview_interval": None,
        "retry_delay": 0.05,
        **options,
    }
    async with (
        Telegram(Secret(TOKEN), base_url=server.url, **options) as telegram,
        open_runtime(
            path,
            agent=agent,
            adapters=[telegram],
            config=config,
            access=access or AccessPolicy.everyone(),
        ) as runtime,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(telegram.run, wrap_runtime(runtime) if wrap_runtime else runtime)
        with trio.fail_after(20):
            yield telegram
        nursery.cancel_scope.cancel()


def texts(server, chat_id):
    """What a chat shows."""
    return server.chats[chat_id].texts if chat_id in server.chats else []


async def wait_texts(server, chat_id, number):
    """What a chat shows, once it shows this many messages of the bot."""
    await server.wait_until(lambda: len(texts(server, chat_id)) >= number)
    return texts(server, chat_id)


async def wait_confirmed(server):
    """Wait until the bot has confirmed all updates."""
    await server.wait_until(lambda: server.pending == 0)


async def wait_problem(telegram):
    """Wait until the bot reports a problem."""
    while telegram.problem is None:  # noqa: ASYNC110 - there is no event for it
        await trio.sleep(0.01)


@attrs.define
class FailingRuntime:
    """A runtime whose `submit` raises errors before it accepts anything."""

    runtime: object
    errors: list

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    async def submit(self, inbound, **options):
        if self.errors:
            raise self.errors.pop(0)
        return await self.runtime.submit(inbound, **options)
