"""A chat bot with a model and tools: OPENAI_API_KEY=... python bot_with_tools.py [database]

It works with any endpoint that speaks the OpenAI chat completions protocol; set OPENAI_BASE_URL and
OPENAI_MODEL to use another one.
"""

from __future__ import annotations

import os
import sys

import trio

import hermes
from hermes.adapters.console import Console
from hermes.agents import Endpoint, Secret, chat_agents, tool

PRICES = {"heron": 12.5, "crane": 40.0}
OPENAI = "https://api.openai.com/v1"


@tool
def price(bird: str) -> float:
    """Return the price of a wooden bird, in francs."""
    return PRICES[bird]


@tool(approval=True)  # asks the user first, and never runs twice
def order(bird: str, number: int) -> str:
    """Order wooden birds."""
    return f"Ordered: {number} x {bird}."


async def main(path: str) -> None:
    endpoint = Endpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", OPENAI),
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        key=Secret.env("OPENAI_API_KEY"),
    )
    system = "You sell wooden birds. Answer in one sentence."
    console = Console(greeting="Ask for a wooden bird. Press Ctrl-D to quit.\n")
    async with (
        chat_agents(endpoint, system=system, tools=[price, order]) as agents,
        hermes.open_runtime(
            path,
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            compressor=agents.compressor(),
            adapters=[console],
        ) as runtime,
    ):
        await console.run(runtime)


if __name__ == "__main__":
    if not os.environ.get("OPENAI_API_KEY") and not os.environ.get("OPENAI_BASE_URL"):
        sys.exit("This example needs a model: set OPENAI_API_KEY, or OPENAI_BASE_URL.")
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "bot.db")
