"""Tools that return files: for the model, for the user, or for both."""

from __future__ import annotations

import asyncio
import io
import json

import httpx2
import pytest
import trio

import hermes
from hermes import Attachment, Config, Inbound, ToolCall, TurnResult
from hermes.agents import ChatAgent, Endpoint, Secret, Toolbox, ToolOutput, tool
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.embed import open_runtime_asyncio
from hermes.events import ToolFinished, ToolStarted, TurnEnded
from hermes.testing import ModelAnswer, ScriptedAgent, open_model
from tests.support.processes import foreign
from tests.support.runtime import SECONDS, with_threads

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000030806000000b9eade810000000049454e44ae426082"
)
SENT = "the user gets it with your answer"


def caller(toolbox, *calls):
    """An agent that makes these calls and returns their texts and files."""

    async def run(turn):
        made = [ToolCall(f"c{n}", name, "{}") for n, name in enumerate(calls)]
        ran = []
        for call in made:
            turn.emit(ToolStarted(call))
            ran.append(await toolbox.run(call, turn))
            turn.emit(ToolFinished(call.id, ran[-1].content, ran[-1].failed, ran[-1].parts))
        text = "\n".join(each.content for each in ran)
        return TurnResult(text=text, files=[file for each in ran for file in each.files])

    return run


async def ask(start, *tools, **options):
    """Call each of these tools in a turn; returns the reply, the tools' rows, and the contents."""
    toolbox = Toolbox(tools, **options)
    names = [schema["name"] for schema in toolbox.schemas]
    with trio.fail_after(SECONDS):
        async with start(agent=caller(toolbox, *names)) as runtime:
            reply = await runtime.ask("k", "go")
            rows = await runtime.conversation("k").history()
    return reply, [row for row in rows if row.role == "tool"]


def names(parts):
    return [part["name"] for part in parts or ()]


@with_threads
@pytest.mark.parametrize("audience", ["model", "user", "both"])
async def test_the_audience_says_who_gets_the_files(start, audience):
    def chart() -> ToolOutput:
        files = [Attachment(data=PNG, name="a.png"), Attachment(data=b"x,y", name="b.csv")]
        return ToolOutput("drawn", files, audience)

    reply, [row] = await ask(start, chart)
    both = ["a.png", "b.csv"]
    assert names(row.parts) == ([] if audience == "user" else both)
    assert [file.name for file in reply.files] == ([] if audience == "model" else both)
    notes = f"\n[image a.png, 45 bytes: {SENT}]\n[file b.csv, 3 bytes: {SENT}]"
    assert row.content == "drawn" + ("" if audience == "model" else notes)


@with_threads
async def test_a_tool_may_return_files_alone_or_with_texts_and_the_content_is_stored(start):
    opened = []

    @tool
    async def a_bare() -> Attachment:
        return Attachment(data=PNG, name="a.png")

    @tool
    def b_list() -> list[object]:
        return ["here:", Attachment(file=io.BytesIO(b"one")), Attachment(data=b"two")]

    @tool
    async def c_chunks() -> Attachment:
        async def chunks():
            for each in (b"three", b"four"):
                await trio.lowlevel.checkpoint()
                yield each

        return Attachment(chunks=chunks(), name="c.txt", size=9)

    @tool
    async def d_stored(turn) -> object:
        stored = await turn.put_file(Attachment(data=b"five", name="d.txt"))
        reader = await turn.open_file(stored.id)
        opened.append(await reader.read())
        return ToolOutput(files=[stored, stored], audience="model")

    reply, rows = await ask(start, a_bare, b_list, c_chunks, d_stored)
    assert [file.media_type for file in reply.files] == ["image/png", *3 * ["text/plain"]]
    assert [file.size for file in reply.files] == [45, 3, 3, 9]
    assert [len(row.parts) for row in rows] == [1, 2, 1, 1]
    assert rows[1].content == f"here:\n[file, 3 bytes: {SENT}]\n[file, 3 bytes: {SENT}]"
    assert rows[3].content == "(done)"
    assert opened == [b"five"]


async def test_a_list_of_other_things_is_a_json_text_as_before(start):
    def numbers() -> list[object]:
        return [1, "two"]

    def nothing() -> list[object]:
        return []

    reply, rows = await ask(start, numbers, nothing)
    assert [row.content for row in rows] == ["[]", '[1,"two"]']
    assert reply.files == ()


async def test_a_file_that_is_refused_fails_the_call_with_the_sentence(start, tmp_path):
    foreign_file = hermes.StoredFile(id="file_" + "0" * 32, media_type="text/plain", size=1)

    def empty() -> Attachment:
        return Attachment(data=b"")

    def folder() -> Attachment:
        return Attachment(path=tmp_path)

    def remote() -> Attachment:
        return Attachment(url="https://example.org/a.png")

    def unknown() -> ToolOutput:
        return ToolOutput(files=[foreign_file])

    reply, rows = await ask(start, empty, folder, remote, unknown)
    assert reply.files == ()
    assert [row.content.partition(": ")[0] for row in rows] == [
        "empty failed", "folder failed", "remote failed", "unknown failed",
    ]  # fmt: skip
    assert "the file is empty" in rows[0].content
    assert "AttachmentRefused" in rows[1].content
    assert "only a file with content can be stored" in rows[2].content
    assert "there is no file" in rows[3].content
    assert [row.parts for row in rows] == [None] * 4


async def test_the_names_of_files_are_redacted(start, caplog):
    def leak(turn) -> ToolOutput:
        return ToolOutput("ok", [Attachment(data=b"opensesame", name="opensesame.txt")])

    async def stored(turn) -> object:
        return await turn.put_file(Attachment(data=b"x", name="a-opensesame.txt"))

    reply, rows = await ask(start, leak, stored, redact=lambda t: t.replace("opensesame", "hidden"))
    assert [file.name for file in reply.files] == ["hidden.txt"]
    assert rows[1].content.endswith("the name of the file contains a secret")
    assert "opensesame" not in str(rows) + caplog.text


async def test_the_name_of_a_file_that_an_agent_stores_is_redacted(start):
    async def reply(turn):
        stored = await turn.put_file(Attachment(data=b"x", name="a-opensesame.txt"))
        return TurnResult(text="done", files=[stored])

    hidden = {"redact": lambda text: text.replace("opensesame", "hidden")}
    async with start(agent=reply, **hidden) as runtime:
        answer = await runtime.ask("k", "go")
    assert [file.name for file in answer.files] == ["a-hidden.txt"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"text": 3}, "text of a ToolOutput"),
        ({"files": ["a.png"]}, "must be an Attachment"),
        ({"audience": "me"}, "audience is model, user or both"),
    ],
)
def test_an_output_of_wrong_types_is_refused(arguments, why):
    with pytest.raises((TypeError, ValueError), match=why):
        ToolOutput(**arguments)


# Interrupted and repeated


async def test_the_files_of_an_interrupted_turn_stay_in_the_rows_of_its_tools(start, path):
    made = trio.Event()
    toolbox = Toolbox([tool(name="chart")(lambda: Attachment(data=PNG, name="a.png"))])
    draw = caller(toolbox, "chart")

    async def run(turn):
        await draw(turn)
        made.set()
        await trio.sleep_forever()

    with trio.fail_after(SECONDS):
        async with start(agent=run) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.ask, "k", "go")
                await made.wait()
                await runtime.conversation("k").interrupt()
            rows = await runtime.conversation("k").history()
    [row] = [row for row in rows if row.role == "tool"]
    assert names(row.parts) == ["a.png"]
    assert foreign(path, "SELECT count(*) FROM session_files") == [[1]]


@with_threads
async def test_a_recorded_call_has_its_files_again_after_a_crash(start, path):
    done, runs = trio.Event(), []

    def chart() -> list[object]:
        runs.append(None)
        return [
            ToolOutput("drawn", [Attachment(data=PNG, name="a.png")], "both"),
            ToolOutput(files=[Attachment(data=b"log", name="log.txt")], audience="model"),
        ]

    toolbox = Toolbox([tool(once=True)(chart)])
    outcomes = []

    async def call(turn):
        outcomes.append(await toolbox.run(ToolCall("c", "chart", "{}"), turn))
        if not done.is_set():
            done.set()
            await trio.sleep_forever()
        return TurnResult(text="done", files=outcomes[-1].files)

    agent = ScriptedAgent([call, call])
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent, config=Config(drain_timeout=0)) as runtime:
            await runtime.submit(Inbound("k", "e", "go"))
            await done.wait()
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                async for envelope in events:
                    if isinstance(envelope.event, TurnEnded):
                        break
            reply = envelope.event.reply
    assert runs == [None]
    assert outcomes[0] == outcomes[1]
    assert names(outcomes[1].parts) == ["a.png", "log.txt"]
    assert [file.name for file in reply.files] == ["a.png"]
    assert foreign(path, "SELECT count(*) FROM files") == [[2]]


@pytest.mark.parametrize("end", ["", '{"content":"x","model":["{}"],"user":["{}"]}', "no JSON"])
async def test_the_text_of_a_tool_cannot_pass_for_a_recorded_result_with_files(start, end):
    """The second run of the turn gets the very text, although it looks like a record."""
    done, said = trio.Event(), []

    async def call(turn):
        stored = await turn.put_file(Attachment(data=b"x"))
        said.append("hermes-tool-result-1 " + end.replace("{}", stored.id))
        ran = await toolbox.run(ToolCall("c", "say", "{}"), turn)
        if not done.is_set():
            done.set()
            await trio.sleep_forever()
        return TurnResult(text=ran.content, files=ran.files)

    toolbox = Toolbox([tool(name="say", once=True)(lambda: said[0])])
    agent = ScriptedAgent([call, call])
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent, config=Config(drain_timeout=0)) as runtime:
            await runtime.submit(Inbound("k", "e", "go"))
            await done.wait()
        async with start(build_agent=lambda _: agent) as runtime:
            with runtime.subscribe("k") as events:
                async for envelope in events:
                    if isinstance(envelope.event, TurnEnded):
                        break
            reply = envelope.event.reply
    assert (reply.text, reply.files) == (said[0], ())


# Hosts and models


def test_a_tool_on_the_loop_of_an_asyncio_host_may_return_chunks(path):
    @tool(on_host_loop=True)
    async def report() -> ToolOutput:
        async def chunks():
            for each in (b"one ", b"two"):
                await asyncio.sleep(0)
                yield each

        return ToolOutput("made", [Attachment(chunks=chunks(), name="r.txt")])

    toolbox = Toolbox([report])

    async def main():
        agent = ScriptedAgent([caller(toolbox, "report")])
        async with open_runtime_asyncio(path, agent=agent) as runtime:
            return await runtime.ask("k", "go")

    reply = asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert [(file.name, file.size) for file in reply.files] == [("r.txt", 7)]


@pytest.mark.parametrize("workers", ["threads"])
async def test_a_chat_agent_sends_the_files_of_its_tools_with_the_answer_once(start):
    second_ended = trio.Event()

    @tool
    async def draw(number: int) -> Attachment:
        """Draw; the first call ends last."""
        if number == 0:
            await second_ended.wait()
        return Attachment(data=PNG, name=f"{number}.png")

    def watch(envelope):
        if isinstance(envelope.event, ToolFinished):
            second_ended.set()

    calls = tuple(ToolCall(f"c{n}", "draw", json.dumps({"number": n})) for n in range(2))
    answers = [ModelAnswer("let me see", calls=calls), ModelAnswer("there you are")]
    with trio.fail_after(SECONDS):
        async with httpx2.AsyncClient() as client, open_model(answers) as model:
            toolbox = Toolbox([draw])
            endpoint = Endpoint(model="m", base_url=model.openai_url, key=Secret("k" * 20))
            provider = OpenAIChat(client, endpoint, "", toolbox.schemas)
            async with start(build_agent=lambda _: ChatAgent(provider, toolbox)) as runtime:
                with runtime.subscribe("k", callback=watch):
                    reply = await runtime.ask("k", "go")
                rows = await runtime.conversation("k").history()
    assert [file.name for file in reply.files] == ["0.png", "1.png"]
    assert [file.size for file in model.requests[1].files] == [len(PNG)] * 2
    assert [(row.role, names(row.parts)) for row in rows] == [
        ("user", []),
        ("assistant", []),
        ("tool", ["0.png"]),
        ("tool", ["1.png"]),
        ("assistant", ["0.png", "1.png"]),
    ]
