"""Telegram: buttons below questions for approval, the menu of commands, and /start."""

from __future__ import annotations

import pytest

from hermes import AccessPolicy, PlatformRules, TurnResult
from hermes.actors.commands import COMMANDS
from hermes.adapters.telegram import GroupPolicy
from hermes.adapters.telegram.inbound import owner_of
from hermes.agents.tools.toolbox import Toolbox, tool
from hermes.messages import ToolCall
from hermes.session_keys import background_key
from hermes.testing.telegram import open_telegram
from tests.support.telegram_bot import running_bot, texts, wait_confirmed, wait_texts


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


ACCESS = AccessPolicy(rules={"telegram": PlatformRules(users=["1", "7"])})


class Shop:
    """An agent that orders what its user asks for, and makes the calls that were approved."""

    def __init__(self):
        self.ordered = []

        def order(bird: str) -> str:
            """Order a bird."""
            self.ordered.append(bird)
            return f"ordered {bird}"

        self.toolbox = Toolbox([tool(approval=True)(order)])

    async def run(self, turn):
        calls = await self.toolbox.approved_calls(turn)
        if not calls and not turn.decided_calls:
            calls = [ToolCall("1", "order", f'{{"bird": "{turn.text}"}}')]
        said = [(await self.toolbox.run(call, turn)).content for call in calls]
        return TurnResult(text="done: " + "; ".join(said))


async def ask(server, chat_id=7, **who):
    """Ask for a bird; returns the message with the question."""
    server.say(chat_id, "heron" if chat_id > 0 else "@hermes_bot heron", **who)
    await server.wait_until(lambda: [m for m in server.chats[chat_id].messages if m.buttons])
    (question,) = [message for message in server.chats[chat_id].messages if message.buttons]
    return question


@pytest.mark.parametrize("button", ["Allow once", "Deny"])
async def test_a_button_decides_about_the_call_and_then_disappears(server, path, button, caplog):
    shop = Shop()
    async with running_bot(server, path, shop, access=ACCESS):
        question = await ask(server)
        assert list(question.buttons) == ["Allow once", "Always allow here", "Deny"]
        assert "heron" in question.text
        query = server.press(7, question.message_id, button)
        await server.wait_until(lambda: query in server.answered_queries and not question.buttons)
        await wait_texts(server, 7, 4)  # the question, the first answer, the decision, the second
        await wait_confirmed(server)
    assert shop.ordered == (["heron"] if button == "Allow once" else [])
    shown = " ".join(texts(server, 7))
    assert ("Approved: order" if shop.ordered else "Denied: order") in shown
    assert "editMessageReplyMarkup failed" not in caplog.text, "they are removed once"


@pytest.mark.parametrize("command", ["/approve 1", "/deny", "/approve always"])
async def test_buttons_disappear_if_the_call_is_decided_by_text(server, path, command, caplog):
    shop = Shop()
    async with running_bot(server, path, shop, access=ACCESS):
        question = await ask(server)
        await wait_texts(server, 7, 2)
        server.say(7, command)
        await server.wait_until(lambda: not question.buttons)
        await wait_texts(server, 7, 4)
        await wait_confirmed(server)
    assert shop.ordered == ([] if command == "/deny" else ["heron"])
    assert "editMessageReplyMarkup failed" not in caplog.text


async def test_a_tool_can_be_allowed_for_good_and_that_can_be_revoked(server, path):
    shop = Shop()
    async with running_bot(server, path, shop, access=ACCESS):
        question = await ask(server)
        server.press(7, question.message_id, "Always allow here")
        await server.wait_until(lambda: shop.ordered == ["heron"])
        await wait_texts(server, 7, 4)
        server.say(7, "stork")
        await server.wait_until(lambda: shop.ordered == ["heron", "stork"])
        await wait_texts(server, 7, 5)
        server.say(7, "/tools")
        assert "Allowed here without a question: order." in (await wait_texts(server, 7, 6))[-1]
        server.say(7, "/deny always order")
        assert (await wait_texts(server, 7, 7))[-1] == "order asks here again before each call."
        server.say(7, "crane")
        assert "May order run" in " ".join((await wait_texts(server, 7, 9))[-2:])
        server.say(7, "/deny always order")
        assert "not allowed here" in (await wait_texts(server, 7, 10))[-1]
    assert shop.ordered == ["heron", "stork"]


async def test_a_button_that_is_pressed_twice_decides_once(server, path):
    shop = Shop()
    async with running_bot(server, path, shop, access=ACCESS):
        question = await ask(server)
        buttons = dict(question.buttons)
        server.press(7, question.message_id, "Allow once")
        question.buttons = buttons
        server.press(7, question.message_id, "Allow once")
        await server.wait_until(lambda: len(server.answered_queries) == 2)
        await wait_texts(server, 7, 5)
    assert shop.ordered == ["heron"]
    assert any("already approved" in text or "has run" in text for text in texts(server, 7))


@pytest.mark.parametrize("admitted", [True, False])
async def test_another_member_of_a_group_cannot_press_the_button(server, path, admitted):
    shop = Shop()
    server.group(-5)
    users = ["1", "2"] if admitted else ["1"]
    access = AccessPolicy(rules={"telegram": PlatformRules(users=users)})
    async with running_bot(server, path, shop, access=access):
        question = await ask(server, -5, user_id=1)
        before = texts(server, -5)
        other = server.press(-5, question.message_id, "Allow once", user_id=2)
        await server.wait_until(lambda: other in server.answered_queries)
        await wait_confirmed(server)
        assert question.buttons, "the user can still decide"
        query = server.press(-5, question.message_id, "Deny", user_id=1)
        await server.wait_until(lambda: query in server.answered_queries and not question.buttons)
        await server.wait_until(lambda: any("Denied" in each for each in texts(server, -5)))
        assert not any("no pending call" in each for each in texts(server, -5)[len(before) :])
    assert shop.ordered == []


async def test_in_a_shared_conversation_each_member_can_press_the_button(server, path):
    shop = Shop()
    server.group(-5)
    access = AccessPolicy(rules={"telegram": PlatformRules(users=["1", "2"])})
    shared = GroupPolicy(shared=True, burst_seconds=0.0)
    async with running_bot(server, path, shop, access=access, group_policy=shared):
        question = await ask(server, -5, user_id=1)
        server.press(-5, question.message_id, "Deny", user_id=2)
        await server.wait_until(lambda: not question.buttons)
        await server.wait_until(lambda: any("Denied" in each for each in texts(server, -5)))
    assert shop.ordered == []


@pytest.mark.parametrize("data", ["", "approve", "approve 1; rm", "new 1", "approve 9" * 20])
async def test_unknown_buttons_are_ignored(server, path, data):
    server.private(7)
    message = {"message_id": 1, "chat": {"id": 7}}
    sender = {"id": 7, "first_name": "u"}
    server.update("callback_query", {"id": "q", "from": sender, "message": message, "data": data})
    async with running_bot(server, path):
        server.say(7, "hello")
        assert await wait_texts(server, 7, 1) == ["You said: hello"]


async def test_the_menu_has_the_commands_of_users_and_start_is_short(server, path):
    async with running_bot(server, path):
        server.say(7, "/start")
        (hello,) = await wait_texts(server, 7, 1)
        await server.wait_until(lambda: server.commands)
    assert hello == "Hello! Send me a message, or see /help for what else I can do."
    assert {"new", "model", "approve", "help"} <= set(server.commands) <= set(COMMANDS)
    assert not {"pair", "quit", "start"} & set(server.commands)


def test_the_user_who_started_a_background_task_owns_its_questions():
    assert owner_of(background_key("k", 3)) == owner_of("k") != owner_of("other")
