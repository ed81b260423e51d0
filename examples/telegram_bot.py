"""A Telegram bot: TELEGRAM_TOKEN=... TELEGRAM_OPERATOR=... python telegram_bot.py [database]

Get a token from @BotFather. TELEGRAM_OPERATOR is your own Telegram user id, a number. Other users
get a pairing code; send the bot /pair CODE to let one in.
"""

from __future__ import annotations

import os
import sys

import trio

import hermes
from hermes.adapters.telegram import BASE, Telegram
from hermes.redaction import Secret


async def reply(turn: hermes.Turn) -> str:
    return f"You said: **{turn.text}**"


async def main(path: str) -> str | None:
    operator = os.environ["TELEGRAM_OPERATOR"]
    access = hermes.AccessPolicy(rules={"telegram": hermes.PlatformRules(operators=[operator])})
    base_url = os.environ.get("TELEGRAM_API", BASE)
    async with (
        Telegram(Secret.env("TELEGRAM_TOKEN"), base_url=base_url) as telegram,
        hermes.open_runtime(path, agent=reply, adapters=[telegram], access=access) as runtime,
    ):
        await telegram.run(runtime)  # until Ctrl-C, or until the token is rejected
    return telegram.problem


if __name__ == "__main__":
    sys.exit(trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "telegram.db"))
