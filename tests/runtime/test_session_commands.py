"""Commands about stored conversations: /sessions, /resume, /search, /delete and /export."""

from __future__ import annotations

import re

import pytest

from hermes import AgentChoice, ServerInfo, Source, ToolInfo, TurnResult
from hermes.agents import Toolbox, tool
from hermes.messages import Message, ToolCall
from hermes.redaction import ValueRedactor
from hermes.testing import inspect

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d"


async def say(runtime, *texts, key="k"):
    return [(await runtime.ask(key, text, commands="all")).text for text in texts][-1]


async def test_sessions_are_listed_with_dates_and_the_current_one_is_marked(start):
    async with start() as runtime:
        await say(runtime, "/new Oak", "hello", "/new Plan", "hello", "hello")
        lines = (await say(runtime, "/sessions")).splitlines()
        assert re.fullmatch(rf"1\. Plan \(4 messages, {DATE}\) \(current\)", lines[0])
        assert re.fullmatch(rf"2\. Oak \(2 messages, {DATE}\)", lines[1])
        await say(runtime, "/resume Oak")
        assert "Oak (2 messages" in await say(runtime, "/sessions")
        assert re.search(r"Oak .* \(current\)", await say(runtime, "/sessions"))


async def test_resume_shows_the_last_exchange(start):
    async with start(build_agent=lambda _: _Answers("first", "second " * 100, "third")) as runtime:
        await say(runtime, "/new Oak", "one", "two\nlines", "/new", "else")
        text = await say(runtime, "/resume Oak")
        assert text.startswith("Back in Oak.\nYou said: two lines\nThe answer was: second second")
        assert len(text) < 400


async def test_search_finds_messages_of_this_key_only(start):
    async with start() as runtime:
        await say(runtime, "/new Birds", "herons fish at dawn", "/new", "nothing here")
        await say(runtime, "herons are mine", key="other")
        found = (await say(runtime, "/search herons")).splitlines()
        assert re.fullmatch(rf"{DATE} Birds: herons fish at dawn", found[0])
        assert not any("mine" in line for line in found)
        assert await say(runtime, "/search zebra") == "Nothing found for zebra."
        assert "/search <words>" in await say(runtime, "/search")


class _Orders:
    """Orders what it is asked for, once the user has approved it."""

    def __init__(self):
        @tool(approval=True)
        def order(bird: str, number: int) -> str:
            """Order birds."""
            return f"{number} feathered friends are on their way"

        self._toolbox = Toolbox([order])

    async def run(self, turn):
        calls = await self._toolbox.approved_calls(turn)
        if not turn.decided_calls:
            calls = [ToolCall("c1", "order", '{"bird": "heron", "number": 2}')]
        rows = [Message("assistant", tool_calls=tuple(calls))] if calls else []
        for call in calls:
            done = await self._toolbox.run(call, turn)
            rows.append(Message("tool", done.content, tool_call_id=call.id, tool_name=call.name))
        return TurnResult(text="That is all.", rows=[*rows, Message("assistant", "That is all.")])


async def test_decisions_and_tool_calls_are_shown_to_people_in_words(start):
    agent = _Orders()
    async with start(build_agent=lambda _: agent) as runtime:
        for text in ("/title Shop", "two please", "/approve", "once more", "/deny"):
            await say(runtime, text)
            await inspect(runtime).wait_idle("k")
        exported = await say(runtime, "/export")
        decided = "one call of order, with exactly these arguments"
        shown = '{"bird":"heron","number":2}'
        assert f"**Hermes**\n\nThe user has approved {decided}: {shown}\n\n**Ass" in exported
        assert f"**Hermes**\n\nThe user has refused {decided}: {shown}\n\n**Ass" in exported
        assert exported.count("**You**") == 2
        found = (await say(runtime, "/search number")).splitlines()[:-1]
        assert 'Shop: calls order(bird="heron", number=2)' in "\n".join(found)
        found = await say(runtime, "/search feathered")
        assert "Shop: order returned: 2 feathered friends are on their way\n" in found
        found = await say(runtime, "/search refused")
        assert f"Shop: The user has refused {decided}: {shown}\n" in found
        assert "Taken back: The user has refused one call" in await say(runtime, "/undo")
        await say(runtime, "/new")
        assert "You said: once more\n" in await say(runtime, "/resume Shop")


async def test_delete_asks_first_and_then_deletes_for_good(start):
    async with start() as runtime:
        assert await say(runtime, "/delete") == "There is nothing to delete yet."
        await say(runtime, "/new Oak", "hello", "/new Plan", "hello")
        asked = await say(runtime, "/delete Oak")
        assert "deletes Oak (2 messages)" in asked
        assert "Oak" in await say(runtime, "/sessions")
        command = re.search(r"/delete \S+ yes", asked)[0]
        assert await say(runtime, command) == "Deleted: Oak."
        assert "Oak" not in await say(runtime, "/sessions")
        assert "You have no conversation" in await say(runtime, command)


async def test_the_current_conversation_can_be_deleted_and_the_next_message_starts_another(start):
    async with start() as runtime:
        await say(runtime, "/title Plan", "hello")
        before = (await runtime.conversation("k").status()).session_id
        await say(runtime, f"/delete {before} yes")
        assert await say(runtime, "/sessions") == "There are no conversations yet."
        assert await say(runtime, "again") == "echo: again"
        history = await runtime.conversation("k").history()
        assert [row.content for row in history] == ["again", "echo: again"]
        assert (await runtime.conversation("k").status()).session_id != before


async def test_nobody_deletes_or_exports_the_conversation_of_another_key(start):
    async with start() as runtime:
        await say(runtime, "hello")
        session_id = (await runtime.conversation("k").status()).session_id
        for command in (f"/delete {session_id} yes", f"/export {session_id}"):
            assert "You have no conversation" in await say(runtime, command, key="other")
        assert len(await runtime.conversation("k").history()) == 2


async def test_export_shows_the_conversation_as_markdown(start):
    async with start() as runtime:
        assert await say(runtime, "/export") == "There is nothing to export yet."
        await say(runtime, "/new Oak", "hello", "more")
        assert await say(runtime, "/export") == (
            "# Oak\n\n**You**\n\nhello\n\n**Assistant**\n\necho: hello\n\n"
            "**You**\n\nmore\n\n**Assistant**\n\necho: more"
        )
        await say(runtime, "/new")
        assert (await say(runtime, "/export Oak")).startswith("# Oak")


async def test_a_long_export_keeps_the_latest_messages(start):
    async with start(build_agent=lambda _: _Answers(*["x" * 20_000] * 4)) as runtime:
        await say(runtime, *[f"question {n}" for n in range(4)])
        text = await say(runtime, "/export")
        assert text.startswith("… 4 earlier messages are left out.\n\n**You**\n\nquestion 2")
        assert text.endswith("x")


class _Answers:
    def __init__(self, *answers):
        self.answers = list(answers)

    async def run(self, turn):
        return TurnResult(text=self.answers.pop(0))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/stauts", "Unknown command /stauts, did you mean /status?"),
        ("/xyzzy now", "Unknown command /xyzzy. See /help"),
        ("/rset", "Unknown command /rset, did you mean /reset?"),
        ("/quit", "Unknown command /quit. See /help"),
        ("/attach /etc/hostname", "Unknown command /attach. See /help"),
        ("/save 1 /tmp", "Unknown command /save, did you mean /usage?"),
    ],
)
async def test_an_unknown_command_is_answered_and_never_reaches_the_agent(start, text, answer):
    async with start() as runtime:
        reply = await runtime.ask("k", text, commands="all")
        assert reply.status == "command"
        assert reply.text.startswith(answer)
        assert await runtime.conversation("k").history() == []


async def test_in_embedded_use_an_unknown_command_is_text(start):
    async with start() as runtime:
        assert (await runtime.ask("k", "/stauts")).text == "echo: /stauts"
        assert (await runtime.ask("k", "//stop", commands="all")).text == "echo: /stop"


async def test_quit_is_listed_and_works_at_the_console_only(start):
    console = Source("console", chat_id="console", user_id="operator")
    async with start() as runtime:
        assert "/quit" not in await say(runtime, "/help")
        assert "/quit" in (await runtime.ask("c", "/help", source=console)).text
        assert (await say(runtime, "/quit")).startswith("Unknown command /quit.")
        assert (await runtime.ask("k", "/quit")).text == "echo: /quit"


async def test_the_bot_reads_no_path_that_is_sent_to_it(start, tmp_path):
    (tmp_path / "secret").write_text("secret")
    path, seen = tmp_path / "secret", []

    async def reply(turn):
        seen.extend(turn.input)
        return turn.text

    async with start(agent=reply) as runtime:
        for platform in ("console", "rpc", "telegram"):
            source = Source(platform, chat_id="c", user_id="operator")
            for text in (f"/attach {path}", f"/queue @{path}", f"see @{path}"):
                answer = await runtime.ask(platform, text, source=source, commands="all")
                assert answer.files == ()
    assert [(row.content, row.parts) for row in seen] == 3 * [
        (f"@{path}", None),
        (f"see @{path}", None),
    ]


# /model and /tools


class _Catalog:
    """Two agents; the host chooses the first by default."""

    small = AgentChoice(name="small", model="tiny-1")
    large = AgentChoice(
        name="large",
        model="huge-1",
        tools=(
            ToolInfo(name="price", summary="Returns a price."),
            ToolInfo(name="order", summary="Orders.", approval=True),
        ),
    )

    def choices(self, source):
        return [self.small, self.large]

    def current(self, settings, source):
        return self.large if settings.agent == "large" else self.small

    def servers(self):
        down = ServerInfo(name="files", tools=0, problem="it did not start")
        return [ServerInfo(name="web", tools=3), down]


async def test_model_shows_and_switches_the_agent_of_one_conversation(start):
    async with start(catalog=_Catalog()) as runtime:
        assert await say(runtime, "/model") == (
            "tiny-1 answers here.\n- small: tiny-1\n- large: huge-1\n"
            "Use /model and a name to switch."
        )
        unknown = await say(runtime, "/model other")
        assert unknown.startswith("There is no agent called other.")
        assert await say(runtime, "/model HUGE-1") == "large (huge-1) answers here from now on."
        assert (await runtime.conversation("k").settings()).agent == "large"
        await say(runtime, "hello")
        assert (await runtime.conversation("k").status()).model == "huge-1"
        assert "Model: huge-1" in await say(runtime, "/status")
        assert "tiny-1 answers here." in await say(runtime, "/model", key="other")
    async with start(catalog=_Catalog()) as runtime:
        assert (await say(runtime, "/model")).startswith("huge-1 answers here.")


async def test_tools_and_servers_are_listed_with_their_state(start):
    async with start(catalog=_Catalog()) as runtime:
        await say(runtime, "/model large")
        assert (await say(runtime, "/tools")).splitlines() == [
            "- price: Returns a price.",
            "- order (asks first): Orders.",
            "MCP server web: 3 tools",
            "MCP server files is not running: it did not start",
        ]


async def test_secrets_in_the_texts_of_tools_and_servers_are_not_shown(start):
    secret = "token-of-the-server-123"

    class Leaking(_Catalog):
        small = AgentChoice(
            name="small", model="m", tools=(ToolInfo(name="t", summary="x" * 70 + secret),)
        )

        def servers(self):
            return [ServerInfo(name="files", tools=0, problem=f"cannot run {secret}")]

    redact = ValueRedactor([secret])
    async with start(catalog=Leaking(), redact=redact) as runtime:
        shown = await say(runtime, "/tools")
    assert "token" not in shown
    assert "cannot run" in shown


async def test_without_a_catalog_there_is_nothing_to_choose(start):
    async with start() as runtime:
        fixed = "The host of this bot chooses the model."
        assert await say(runtime, "/model") == await say(runtime, "/model x") == fixed
        assert await say(runtime, "/tools") == "There are no tools."
