"""A bot in a process of its own, which says how much memory it has used."""

from __future__ import annotations

import resource
import sys

import trio

from hermes import AccessPolicy, Attachment, TurnResult, open_runtime
from hermes.adapters.telegram import Telegram
from hermes.redaction.keys import Secret
from hermes.testing.telegram import TOKEN
from tests.support.telegram_bot import NO_BURSTS, fast_limiter


async def answer(turn):
    """Send the file that the text names, or else the peak of the memory in kilobytes."""
    text = turn.input[-1].content or ""
    if text.startswith("send "):
        return TurnResult(text="", files=[Attachment(path=text.removeprefix("send "))])
    return str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


async def main(url, path):
    async with (
        Telegram(
            Secret(TOKEN), base_url=url, group_policy=NO_BURSTS, rate_limiter=fast_limiter(),
            preview_interval=None,
        ) as telegram,
        open_runtime(
            path, agent=answer, adapters=[telegram], access=AccessPolicy.everyone()
        ) as runtime,
    ):  # fmt: skip
        await telegram.run(runtime)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
