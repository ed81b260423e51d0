"""A bot with a model and tools: OPENAI_API_KEY=… python bot_with_tools.py

Any endpoint that speaks OpenAI's protocol will do: OPENAI_BASE_URL and OPENAI_MODEL name it.
"""

from __future__ import annotations

import os
import sys

import trio

import hermes
from hermes.adapters.console import Console
from hermes.agents import Endpoint, Secret, chat_agents, tool

PRICES = {"heron": 12.5, "crane": 40.0}
BASE = "https://api.openai.com/v1"


@tool
def price(bird: str) -> float:
    """What a wooden bird costs, in francs."""
    return PRICES[bird]


@tool(once=True, approval=True)
def order(bird: str, number: int) -> str:
    """Order wooden birds; the user is asked before."""
    return f"{number} of {bird} are on their way."


async def main(path):
    endpoint = Endpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", BASE),
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        key=Secret.env("OPENAI_API_KEY"),
    )
    system = "You sell wooden birds. Answer in one sentence."
    console = Console(greeting="Ask for a wooden bird. Ctrl-D ends.\n")
    async with (
        chat_agents(endpoint, system=system, tools=[price, order]) as agents,
        hermes.open_runtime(
            path, agent=agents.build, describe=agents.describe, adapters=[console]
        ) as runtime,
    ):
        await console.run(runtime)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "bot.db")
