"""A bot on Telegram. Ask @BotFather for a token, then: TELEGRAM_TOKEN=… python telegram_bot.py"""

from __future__ import annotations

import os
import sys

import trio

import hermes
from hermes.adapters.telegram import BASE, Telegram
from hermes.redaction.keys import Secret


async def reply(turn):
    return f"You said: **{turn.text}**"


async def main(path):
    token, base_url = Secret.env("TELEGRAM_TOKEN"), os.environ.get("TELEGRAM_API", BASE)
    async with (
        Telegram(token, base_url=base_url) as telegram,
        hermes.open_runtime(path, agent=reply, adapters=[telegram]) as runtime,
    ):
        await telegram.run(runtime)  # until Ctrl-C, or until the token is not good any more
    return telegram.trouble


if __name__ == "__main__":
    sys.exit(trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "telegram.db"))
