"""A recorded turn runs again: its tools are not called without an approval."""

from __future__ import annotations

import pytest

from hermes import Attachment, Source, TurnResult
from hermes.agents import Endpoint, Secret, chat_agents, tool
from hermes.errors import HistoryChanged, UnknownTurn
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer, inspect, open_model

SOURCE = Source("other")


def call(name, arguments, id_="c1"):
    return ModelAnswer(calls=[ToolCall(id_, name, arguments)])


class Sea:
    """Tools that note their calls."""

    def __init__(self):
        self.calls = []

    @property
    def tools(self):
        @tool
        def look(where: str) -> str:
            """Look."""
            self.calls.append(("look", where))
            if where == "down":
                raise ValueError("too deep")
            return f"saw {where} {len(self.calls)}"

        @tool(once=True)
        def send(to: str) -> str:
            """Send."""
            self.calls.append(("send", to))
            return f"sent to {to}"

        return [look, send]


async def results(runtime, key):
    rows = await runtime.conversation(key).history()
    return [row.content for row in rows if row.role == "tool"]


@pytest.fixture
def sea():
    return Sea()


@pytest.fixture
def open_sea(start, sea):
    """Open a model and a runtime: `async with open_sea(answers) as (runtime, model)`."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened(answers):
        async with open_model(answers) as model:
            endpoint = Endpoint(base_url=model.openai_url, model="m", key=Secret("k"))
            async with (
                chat_agents(endpoint, tools=sea.tools) as agents,
                start(build_agent=agents.build, agent_spec=agents.agent_spec) as runtime,
            ):
                yield runtime, model

    return opened


async def repeat(runtime, turn_id, to="copy", **changes):
    receipt = await runtime.api.repeat_turn("k", turn_id, to=to, source=SOURCE, **changes)
    return await runtime.wait(receipt)


async def test_the_same_calls_get_their_recorded_results_in_order(open_sea, sea):
    answers = [
        call("look", '{"where": "up"}'), call("look", '{"where":"up"}', "c2"),
        call("look", '{"where": "down"}', "c3"), call("send", '{"to": "ann"}', "c4"), "done",
    ]  # fmt: skip
    async with open_sea([*answers, *answers]) as (runtime, _):
        first = await runtime.ask("k", "go")
        made = list(sea.calls)
        again = await repeat(runtime, first.turn_id)
        assert sea.calls == made
        assert await results(runtime, "copy") == await results(runtime, "k")
        turn = await runtime.api.past_turn("copy", again.turn_id)
    assert again.text == "done"
    assert turn.repeats == ("k", first.turn_id)
    assert [event.failed for event in turn.events] == [False, False, True, False]
    assert made == [("look", "up"), ("look", "up"), ("look", "down"), ("send", "ann")]


async def test_a_call_without_a_recorded_result_needs_an_approval(open_sea, sea):
    up, down = call("look", '{"where": "up"}'), call("look", '{"where": "north"}')
    async with open_sea([up, "one", up, down, up, "asked", "went there"]) as (runtime, _):
        first = await runtime.ask("k", "go")
        again = await repeat(runtime, first.turn_id)
        said = await results(runtime, "copy")
        assert sea.calls == [("look", "up")]
        asked = [approval.arguments for approval in again.approvals]
        assert asked == ['{"where":"north"}', '{"where":"up"}']
        assert said[0] == "saw up 1"
        assert "needs the user's approval" in said[1]
        assert "needs the user's approval" in said[2]
        approval = again.approvals[0].approval_id
        await runtime.ask("copy", f"/approve {approval}", source=SOURCE)
        await runtime.ask("copy", "and?", source=SOURCE)
    assert sea.calls == [("look", "up"), ("look", "north")]


async def test_a_once_call_without_a_result_is_never_made_again(open_sea, sea, path):
    send = call("send", '{"to": "ann"}')
    async with open_sea([send, "sent", send, "again"]) as (runtime, _):
        first = await runtime.ask("k", "go")
        store = inspect(runtime).store
        interrupted = "[interrupted before it answered]"
        await store.index_pending()  # then it is in `messages`
        await store.transact(
            lambda tx: tx.run("UPDATE messages SET content = ? WHERE role = 'tool'", interrupted)
        )
        reply = await repeat(runtime, first.turn_id)
        [said] = await results(runtime, "copy")
    assert sea.calls == [("send", "ann")]
    assert "unknown whether it took effect" in said
    assert reply.approvals == ()


async def test_the_branch_has_the_messages_before_the_turn_and_its_question(open_sea):
    async with open_sea(["one", "two", "three", "four", "five"]) as (runtime, model):
        await runtime.ask("k", "first")
        second = await runtime.ask("k", "second")
        await runtime.ask("k", "third")
        await runtime.conversation("k").configure(model="large", metadata={"a": 1})
        reply = await repeat(runtime, second.turn_id, instructions="Sing.")
        rows = await runtime.conversation("copy").history()
        settings = await runtime.conversation("copy").settings()
        found = await runtime.admin.find(reply.session_id)
        with pytest.raises(HistoryChanged):
            await repeat(runtime, second.turn_id)
        other = await repeat(runtime, second.turn_id, "more", text="else", model="small")
    assert [row.content for row in rows] == ["first", "one", "second", "four"]
    assert (settings.model, settings.metadata) == ("large", {"a": 1})
    assert found.session.kind == "branch"
    assert found.session.parent_session_id == second.session_id
    assert model.requests[3].json["messages"][-1] == {"role": "system", "content": "Sing."}
    assert [request.json["model"] for request in list(model.requests)[3:]] == ["large", "small"]
    assert other.text == "five"


async def test_files_of_the_question_are_readable_in_the_branch(start):
    async def agent(turn):
        [file_id] = [part["file"] for part in turn.input[0].parts]
        return (await (await turn.open_file(file_id)).read()).decode()

    async with start(agent=agent) as runtime:
        first = await runtime.ask("k", "read", attachments=[Attachment(data=b"the sea")])
        reply = await repeat(runtime, first.turn_id)
        rows = await runtime.conversation("copy").history()
    assert (reply.text, rows[0].content) == ("the sea", "read")


async def test_an_unknown_turn_cannot_be_repeated(start):
    async def agent(turn):
        return TurnResult(text="fine")

    async with start(agent=agent) as runtime:
        await runtime.ask("k", "hello")
        with pytest.raises(UnknownTurn):
            await repeat(runtime, 999)
        with pytest.raises(UnknownTurn):
            await runtime.api.repeat_turn("other", 1, to="copy", source=SOURCE)
