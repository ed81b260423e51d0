"""Chat completions in conversations: the client's history against the transcript."""

from __future__ import annotations

import base64
import itertools
import random

import pytest
import trio

from hermes import TurnResult
from hermes.events import AssistantMessage, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall
from hermes.testing import DeterministicCompressor, inspect
from tests.support.http import http_server, new_token
from tests.support.media_samples import gif
from tests.support.runtime import SECONDS

URL = "/v1/chat/completions"
CLIENTS = {}
"""One client for each server: to make one is slow."""


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Recorder:
    """An agent with numbered answers, which records what it has seen."""

    def __init__(self):
        self.seen = []
        self.keys = []

    async def __call__(self, turn):
        self.keys.append(turn.session_key)
        self.seen.append([(row.role, row.content) for row in turn.messages()])
        return f" answer {len(self.seen)} to {turn.text}\n"


async def ask(server, messages, name="chat 1", headers=None, **options):
    """Send messages in a conversation, and return the text of the answer."""
    sent = {"content-type": "application/json", **(headers or {})}
    if name is not None:
        sent["X-Hermes-Conversation"] = name
    body = {"model": "hermes", "messages": messages, **options}
    client = CLIENTS.get(server.url) or CLIENTS.setdefault(server.url, server.http())
    answer = await client.post(URL, json=body, headers=sent, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def sessions(server):
    """Return all sessions as (kind, parent's id, id, texts), oldest first."""
    store = inspect(server.runtime).store
    listed = await server.runtime.admin.sessions()
    found = sorted((each.session for each in listed), key=lambda session: session.started_at)
    return [
        (s.kind, s.parent_session_id, s.id, [m.content for m in (await store.load(s.id)).messages])
        for s in found
    ]


async def test_a_conversation_is_continued(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        first = await ask(server, [user("one")])
        await ask(server, [user("one"), assistant(first.strip()), user(" two ")])
        [(kind, parent, _, texts)] = await sessions(server)
    assert (kind, parent) == ("new", None)
    assert [text.strip() for text in texts] == ["one", "answer 1 to one", "two", "answer 2 to  two"]
    assert len(agent.seen[1]) == 3


async def test_an_edited_message_opens_a_branch_and_leaves_the_other_one(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        history = [user("one")]
        history.append(assistant(await ask(server, history)))
        await ask(server, [*history, user("two")])
        before = await sessions(server)
        await ask(server, [*history, user("two, edited")])
        old, new = await sessions(server)
        assert [old] == before
        assert new[:2] == ("branch", old[2])
        assert new[3][2] == "two, edited"
        assert [text for _, text in agent.seen[2]][2] == "two, edited"
        # The first branch goes on.
        await ask(server, [*history, user("two"), assistant(" answer 2 to two"), user("three")])
        assert [session[2] for session in await sessions(server)] == [old[2], new[2]]
        assert agent.keys[3] == agent.keys[0]


async def test_an_answer_that_is_asked_for_again_is_a_branch(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        await ask(server, [user("one")])
        await ask(server, [user("one")])
        first, second = await sessions(server)
    assert second[:2] == ("branch", first[2])
    assert [text.strip() for text in second[3]] == ["one", "answer 2 to one"]
    assert agent.seen[1] == [("user", "one")]


async def test_a_conversation_may_begin_elsewhere(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        await ask(server, [user("a"), assistant("b"), user("c")])
        [(kind, parent, _, texts)] = await sessions(server)
    assert (kind, parent, texts[:3]) == ("new", None, ["a", "b", "c"])
    assert agent.seen == [[("user", "a"), ("assistant", "b"), ("user", "c")]]


async def test_requests_at_the_same_time_do_not_see_each_other(path):
    agent = Recorder()
    both = trio.Event()

    async def waits(turn):
        if len(agent.keys) == 1:
            both.set()
        await both.wait()
        return await agent(turn)

    async with http_server(path, waits) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, server, [user("one")])
            with trio.fail_after(SECONDS):
                while len(await inspect(server.runtime).store.waiting_keys(0)) < 3:
                    await trio.lowlevel.checkpoint()
            both.set()
        assert agent.seen == [[("user", "one")]] * 3
        assert len(set(agent.keys)) == 3


async def test_a_request_does_not_wait_for_the_turn_of_another_one(path):
    agent, running, both = Recorder(), [], trio.Event()

    async def waits(turn):
        if turn.text == "two":
            running.append(turn)
            if len(running) == 2:
                both.set()
            await both.wait()
        return await agent(turn)

    async with http_server(path, waits) as server:
        history = [user("one"), assistant(await ask(server, [user("one")])), user("two")]
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(ask, server, history)
        assert [len(seen) for seen in agent.seen] == [1, 3, 3]
        first, second = await sessions(server)
        assert second[:2] == ("branch", first[2])


async def test_the_agent_s_tools_do_not_matter_for_the_comparison(path):
    async def agent(turn):
        call = ToolCall("c1", "clock", "{}")
        turn.emit(AssistantMessage(Message("assistant", "Let me look.", tool_calls=(call,))))
        turn.emit(ToolStarted(call))
        turn.emit(ToolFinished("c1", "noon"))
        return "It is noon."

    async with http_server(path, agent) as server:
        answer = await ask(server, [user("time?")])
        assert answer == "It is noon."
        # A streamed answer has the text before the call as well.
        history = [user("time?"), assistant(f"Let me look.\n\n{answer}"), user("and now?")]
        again = await ask(server, history)
        await ask(server, [*history, assistant(again), user("thanks")])
        [session] = await sessions(server)
        assert len(session[3]) == 12
        # A text that is not the last one is no answer.
        await ask(server, [user("time?"), assistant("Let me look."), user("and now?")])
        assert [each[0] for each in await sessions(server)] == ["new", "branch"]


async def test_the_tools_of_the_client_wait_in_the_conversation(path):
    async def agent(turn):
        if turn.input[-1].role == "tool":
            return f"it said {turn.input[-1].content}"
        call = ToolCall("c1", "look", "{}")
        rows = [Message("assistant", None, tool_calls=(call,))]
        return TurnResult(rows=rows, calls=(call,))

    async with http_server(path, agent) as server:
        client = server.openai(default_headers={"X-Hermes-Conversation": "tools"})
        tool = {"type": "function", "function": {"name": "look"}}
        history = [user("look!")]
        first = await client.chat.completions.create(model="hermes", messages=history, tools=[tool])
        history.append(first.choices[0].message.model_dump(exclude_none=True))
        history.append({"role": "tool", "tool_call_id": "c1", "content": "a plum"})
        second = await client.chat.completions.create(model="hermes", messages=history)
        assert second.choices[0].message.content == "it said a plum"
        history.append(assistant("it said a plum"))
        await client.chat.completions.create(model="hermes", messages=[*history, user("more")])
        [session] = await sessions(server)
        assert session[3][:4] == ["look!", None, "a plum", "it said a plum"]
        # Another result is another history.
        history[2] = {"role": "tool", "tool_call_id": "c1", "content": "a pear"}
        third = await client.chat.completions.create(model="hermes", messages=history[:3])
        assert third.choices[0].message.content == "it said a pear"
        assert [session[0] for session in await sessions(server)] == ["new", "branch"]


async def test_images_are_compared_by_their_content(path):
    agent = Recorder()

    def picture(data):
        url = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
        return [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]

    async with http_server(path, agent) as server:
        first = await ask(server, [user(picture(gif()))])
        await ask(server, [user(picture(gif())), assistant(first), user("and?")])
        assert len(await sessions(server)) == 1
        await ask(server, [user(picture(gif(31, 20))), assistant(first), user("and?")])
        assert [each[0] for each in await sessions(server)] == ["new", "branch"]


async def test_a_name_is_that_of_a_header_of_the_metadata_or_of_the_user(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        await ask(server, [user("1")], metadata={"conversation": "meta"})
        await ask(server, [user("2")], name=None, metadata={"conversation": "meta"})
        await ask(server, [user("3")], name=None, user="ann")
    assert agent.keys[0].endswith(":name%3Achat%201")
    assert agent.keys[1].endswith(":name%3Ameta")
    assert ":temp_" in agent.keys[2]


async def test_another_token_has_other_conversations(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        other = await new_token(server.runtime, "bob")
        await ask(server, [user("one")])
        await server.http(other).post(
            URL,
            json={"model": "hermes", "messages": [user("one")]},
            headers={"X-Hermes-Conversation": "chat 1"},
        )
        assert len(set(agent.keys)) == 2
        assert [each[0] for each in await sessions(server)] == ["new", "new"]


@pytest.mark.parametrize("name", ["x" * 501, "a\x1fb"])
async def test_a_name_that_is_not_valid_is_refused(path, name):
    async with http_server(path) as server:
        body = {"model": "hermes", "messages": [user("x")], "metadata": {"conversation": name}}
        answer = await server.http().post(URL, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "conversation")


async def test_long_names_have_branches_too(path):
    agent = Recorder()
    async with http_server(path, agent) as server:
        for _ in range(2):
            await ask(server, [user("one")], name=None, metadata={"conversation": "ü" * 400})
        assert [each[0] for each in await sessions(server)] == ["new", "branch"]


# Random histories


def visible(rows):
    """Return what a client sees of a transcript."""
    return [(row[0], (row[1] or "").strip()) for row in rows]


@pytest.mark.parametrize("seed", range(6))
async def test_the_model_sees_the_history_of_the_client(path, seed):
    """Random edits, repetitions and continuations of any earlier answer, some of them in parallel.

    The model sees exactly the client's history and the new message. No session changes except by
    growing. A branch comes from the session that has most of its history.
    """
    chance = random.Random(seed)
    agent = Recorder()
    known = [[]]
    numbers = itertools.count()

    async def step(server, history):
        text = chance.choice(["same", f"new {next(numbers)}"])
        before = len(agent.seen)
        answer = await ask(server, [*history, user(text)])
        expected = [(m["role"], m["content"].strip()) for m in [*history, user(text)]]
        assert expected in [visible(rows) for rows in agent.seen[before:]]
        known.append([*history, user(text), assistant(answer.strip())])

    async with http_server(path, agent) as server:
        old = {}
        for _ in range(12):
            history = list(chance.choice(known))
            if history and chance.random() < 0.3:  # the client has edited a message
                index = chance.randrange(len(history))
                history[index] = {**history[index], "content": f"edited {next(numbers)}"}
            alone = chance.random() < 0.7
            async with trio.open_nursery() as nursery:
                for _ in range(1 if alone else 2):
                    nursery.start_soon(step, server, history)
            found = {each[2]: each for each in await sessions(server)}
            for session_id, (kind, parent, _, texts) in old.items():
                assert found[session_id][:2] == (kind, parent)
                assert found[session_id][3][: len(texts)] == texts
            for session_id in found.keys() - old.keys() if old and alone else ():
                kind, parent, *_ = found[session_id]
                assert kind == "branch"
                shared = {key: common(history, old[key][3]) for key in old}
                assert shared[parent] == max(shared.values())
            old = found


def common(history, texts):
    """Return how many messages a history and a transcript have in common at their beginning."""
    pairs = zip([message["content"] for message in history], texts, strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0].strip() == pair[1].strip(), pairs)))


# Compression


async def test_a_compressed_conversation_goes_on_and_has_branches(path):
    agent = Recorder()
    async with http_server(path, agent, compressor=DeterministicCompressor()) as server:
        history = []
        for number in range(8):
            history.append(user(f"question {number} " + "word " * 200))
            history.append(assistant((await ask(server, history)).strip()))
        change = await server.runtime.conversation(agent.keys[0]).compress(keep_exchanges=2)
        assert change.changed
        await ask(server, [*history, user("go on")])
        assert agent.keys[-1] == agent.keys[0]
        assert len(agent.seen[-1]) < len(history)
        edited = [{**history[0], "content": "edited"}, *history[1:]]
        await ask(server, [*edited, user("go on")])
        assert agent.seen[-1][0] == ("user", "edited")
        assert len(agent.seen[-1]) == len(history) + 1
        # An earlier message is still in the session before the compression.
        await ask(server, [*history[:4], user("otherwise")])
        assert visible(agent.seen[-1]) == [
            (each["role"], each["content"].strip()) for each in [*history[:4], user("otherwise")]
        ]
        found = {kind: parent for kind, parent, *_ in await sessions(server)}
        assert found == {"compression": found["branch"], "branch": found["branch"]}
