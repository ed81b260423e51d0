"""C16: a conversation that never ends stays within the window of its model."""

from __future__ import annotations

from hermes import CompressionConfig, Config
from hermes.agents import Endpoint, chat_agents, tool
from hermes.messages import ToolCall
from hermes.store import SessionStore
from hermes.testing import ModelAnswer, open_model
from tests.support.runtime import threads_only

WINDOW = 6_000
CONFIG = Config(compression=CompressionConfig(window=WINDOW, max_output=600))


@tool
def look(what: str) -> str:
    """Look something up."""
    return f"all about {what}: " + "fact " * 150


def question(number):
    return f"question {number}: " + "why " * 30


def answer(number):
    return f"answer {number}: " + "because " * 30


class Model:
    """A model that answers questions; `lost` are exchanges that it was not shown."""

    def __init__(self):
        self.summaries = 0
        self.lost = []

    def __call__(self, request):
        if "<conversation>" in request.text:
            self.summaries += 1
            return f"## Goal\nsummary {self.summaries}: " + "and so on " * 20
        number = int(request.text.split(":")[0].split()[1])
        shown = request.body.decode()
        if number and (question(number - 1) not in shown or answer(number - 1) not in shown):
            self.lost.append(number - 1)
        if number % 7 == 3 and f"call{number}" not in shown:
            call = ToolCall(f"call{number}", "look", f'{{"what": "thing {number}"}}')
            return ModelAnswer(calls=[call])
        return answer(number)


@threads_only
async def test_a_conversation_always_stays_below_its_window(start, path, prove, campaign):
    turns = 2000 if prove else 150
    campaign.count(turns=turns)
    model_of = Model()
    async with (
        open_model(model_of, window=WINDOW, keep=None) as model,
        chat_agents(
            Endpoint(base_url=model.openai_url, model="m"), system="Be kind.", tools=[look]
        ) as agents,
        start(
            build_agent=agents.build, agent_spec=agents.agent_spec, compressor=agents.compressor(),
            config=CONFIG,
        ) as runtime,
    ):  # fmt: skip
        replies = [await runtime.ask("k", question(number)) for number in range(turns)]
        largest = max(request.prompt_tokens for request in model.requests)
    assert [reply.text for reply in replies] == [answer(number) for number in range(turns)]
    assert largest <= WINDOW
    assert model_of.lost == []
    with SessionStore(path) as store:
        line = store.get_compression_lineage(store.get_route("k").session_id)
        sizes = [len(store.get_messages(session_id)) for session_id in line]
    assert model_of.summaries == len(line) - 1
    assert turns / 30 < len(line) < turns / 5, "it is compressed neither too often nor too rarely"
    assert all(size > 6 for size in sizes[:-1])
