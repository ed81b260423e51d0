"""What the agents and the compressor of Hermes tell users comes from the table of texts."""

from __future__ import annotations

import pickle

import httpx2
import pytest

from hermes import CompressionConfig, Config, Texts, ToolCall
from hermes.agents import Budgets, Endpoint, Price, Retries, Spending, chat_agents
from hermes.agents.budgets import BudgetSpent
from hermes.agents.chat import ChatAgent
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.events import TextDelta
from hermes.testing import Disconnect, ModelAnswer, open_model
from tests.support.marked_texts import MARKED, foreign_words, names_in

PRICES = {"m": Price(input=1_000_000.0, output=0.0)}
"""Each input token costs 1."""
COMPRESSION = CompressionConfig(window=1200, max_output=0, protect_first=0, enabled=False)


@pytest.fixture
def workers():
    """Threads: virtual time does not work with real sockets."""
    return "threads"


@pytest.fixture
async def client():
    async with httpx2.AsyncClient() as opened:
        yield opened


def endpoint(model):
    return Endpoint(base_url=model.openai_url, model="m")


@pytest.mark.parametrize("budget", ["session", "principal", "day"])
async def test_a_budget_that_is_used_up(start, budget):
    spending = Spending(PRICES, Budgets(**{budget: 5.0}))
    async with (
        open_model() as model,
        chat_agents(endpoint(model), spending=spending) as agents,
        start(
            build_agent=agents.build,
            agent_spec=agents.agent_spec,
            compressor=agents.compressor(window=1200),
            config=Config(compression=COMPRESSION),
            texts=MARKED,
        ) as runtime,
    ):
        await runtime.ask("k", "a long enough question " * 100)
        refused = [await runtime.ask("k", text) for text in ("another", "/compress here 1")]
    texts = [reply.text for reply in refused]
    assert foreign_words(texts) == set()
    assert names_in(texts) >= {"not_sent", f"{budget}_budget"}


CALLS = ModelAnswer(calls=(ToolCall("c1", "look", "{}"),))
ANSWERS = {
    "truncated": lambda _: ModelAnswer("", reasoning="hm", finish="length"),
    "too_many_steps": lambda _: CALLS,
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_model_that_does_not_answer(start, client, name):
    async with open_model(ANSWERS[name]) as model:
        provider = OpenAIChat(client, endpoint(model), None, ())
        build = lambda _: ChatAgent(provider, max_steps=2)  # noqa: E731
        async with start(build_agent=build, texts=MARKED) as runtime:
            text = (await runtime.ask("k", "hello")).text
    assert foreign_words([text]) == set()
    assert name in names_in([text])


async def test_a_connection_that_is_lost(start, client):
    said = iter(["first first", "second"])
    async with open_model(lambda _: ModelAnswer(next(said), chunk_size=5)) as model:
        model.fail(Disconnect(1))
        provider = OpenAIChat(client, endpoint(model), None, ())
        build = lambda _: ChatAgent(provider, retries=Retries(first_delay=0.0))  # noqa: E731
        async with start(build_agent=build, texts=MARKED) as runtime:
            async with runtime.stream("k", "hello") as stream:
                events = [event async for event in stream if isinstance(event, TextDelta)]
    assert "".join(event.text for event in events) == "first\n\n«retrying»\n\nsecond"


@pytest.mark.parametrize(
    ("name", "answer"),
    [("summary_empty", ""), ("summary_truncated", ModelAnswer("cut", finish="length"))],
)
async def test_a_summary_that_cannot_be_used(start, name, answer):
    def answers(request):
        return answer if "<conversation>" in request.text else "fine"

    async with (
        open_model(answers) as model,
        chat_agents(endpoint(model)) as agents,
        start(
            build_agent=agents.build,
            compressor=agents.compressor(window=1200),
            config=Config(compression=COMPRESSION),
            texts=MARKED,
        ) as runtime,
    ):
        for number in range(4):
            await runtime.ask("k", f"{number} " * 100)
        text = (await runtime.ask("k", "/compress here 1")).text
    assert text == f"«compression_failed «{name}»»"


def test_a_budget_error_has_its_values_and_is_copied_whole():
    error = pickle.loads(pickle.dumps(BudgetSpent("day", 1.5, 1.25)))
    assert (error.budget, error.spent, error.limit) == ("day", 1.5, 1.25)
    assert str(error) == "the daily budget is used up (1.5000 of 1.2500); try again tomorrow"
    german = Texts(day_budget="Für heute ist Schluss ({limit}).")
    assert error.text(german) == "Für heute ist Schluss (1.2500)."
