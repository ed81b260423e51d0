"""The requests of Open WebUI, LibreChat, Continue and aider, with the headers of the recipes."""

from __future__ import annotations

import json

import pytest
import trio

from hermes import Usage
from hermes.adapters.http import HttpConfig
from hermes.events import TextDelta
from hermes.testing import inspect
from tests.support.http import http_server
from tests.support.runtime import SECONDS

URL = "/v1/chat/completions"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Recorder:
    """An agent that streams numbered answers, and records its turns."""

    def __init__(self):
        self.turns = []

    async def __call__(self, turn):
        self.turns.append((turn.session_key, [row.content for row in turn.messages()], turn))
        answer = f"answer {len(self.turns)}"
        turn.emit(TextDelta(answer))
        turn.charge(Usage(input_tokens=5, output_tokens=2))
        return answer


@pytest.fixture
def agent():
    return Recorder()


class FrontEnd:
    """A program with one connection to the server."""

    def __init__(self, server):
        self.client = server.http()

    async def send(self, body, headers):
        """Send a request as a front end does, and return the text of the answer."""
        data = json.dumps(body)
        sent = {"Content-Type": "application/json", **headers}
        answer = await self.client.post(URL, content=data, headers=sent, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        if not body.get("stream"):
            return answer.json()["choices"][0]["message"]["content"]
        *frames, done, end = answer.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert chunks[-1]["usage"]["total_tokens"] == 7
        return "".join(delta.get("content") or "" for delta in deltas)


class OpenWebUI(FrontEnd):
    """Open WebUI: the custom headers of its connection have values from templates."""

    async def chat(self, messages, *, chat="c1", message, parent="", task="", **options):
        """Ask for the answer that will have the id `message`."""
        headers = {
            "X-Hermes-Conversation": chat,
            "X-Hermes-Message": message,
            "X-Hermes-Parent": parent,
            "X-Hermes-Task": task,
            "X-Hermes-User": "8f0c",
            "X-OpenWebUI-Chat-Id": chat,
        }
        body = {"stream": True, "model": "hermes", "messages": messages, **options}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        return await self.send(body, headers)

    async def title(self, chat="c1", message="m1"):
        """Ask for a title, as it does after the first answer."""
        prompt = "### Task:\nGenerate a concise, 3-5 word title.\n<chat_history>one</chat_history>"
        task = "title_generation"
        options = {"stream": False, "max_completion_tokens": 1000}
        return await self.chat([user(prompt)], chat=chat, message=message, task=task, **options)


async def kinds(server):
    listed = await server.runtime.admin.sessions()
    found = sorted((each.session for each in listed), key=lambda session: session.started_at)
    return [session.kind for session in found]


async def test_open_webui_has_one_conversation_per_chat_and_none_for_its_tasks(path, agent):
    async with http_server(path, agent) as server:
        ui = OpenWebUI(server)
        first = await ui.chat([user("one")], message="m1")
        await ui.title()
        await ui.title(message="m1")  # tags and follow-ups have the ids of the same message
        history = [user("one"), assistant(first)]
        await ui.chat([*history, user("two")], message="m2", parent="m1")
        assert await kinds(server) == ["new"]
        assert [texts for _, texts, _ in agent.turns][-1] == ["one", first, "two"]
        assert agent.turns[-1][2].metadata == {"user": "8f0c"}
        [(session, *_)] = [await inspect(server.runtime).store.list_sessions()]
        assert session.session.message_count == 4


async def test_open_webui_gets_each_answer_once(path, agent):
    async with http_server(path, agent) as server:
        ui = OpenWebUI(server)
        answers = [await ui.chat([user("one")], message="m1") for _ in range(2)]
        assert answers == ["answer 1"] * 2
        assert len(agent.turns) == 1


async def test_open_webui_regenerates_edits_and_goes_back(path, agent):
    async with http_server(path, agent) as server:
        ui = OpenWebUI(server)
        first = await ui.chat([user("one")], message="m1")
        again = await ui.chat([user("one")], message="m2")
        edited = await ui.chat([user("uno")], message="m3")
        assert [first, again, edited] == ["answer 1", "answer 2", "answer 3"]
        for number, answer in ((1, first), (2, again)):
            history = [user("one"), assistant(answer), user("more")]
            await ui.chat(history, message=f"m{number}0", parent=f"m{number}")
        assert await kinds(server) == ["new", "branch", "branch"]
        assert [texts for _, texts, _ in agent.turns][-1] == ["one", again, "more"]
        keys = [key for key, *_ in agent.turns]
        assert keys[3:] == keys[:2]


async def test_open_webui_asks_two_models_at_once(path, agent):
    async with http_server(path, agent) as server:
        ui = OpenWebUI(server)
        answers = {}

        async def model(message):
            answers[message] = await ui.chat([user("one")], message=message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(model, "m1")
            nursery.start_soon(model, "m2")
        assert [texts for _, texts, _ in agent.turns] == [["one"], ["one"]]
        for message, answer in answers.items():
            history = [user("one"), assistant(answer), user("two")]
            await ui.chat(history, message=f"{message}0", parent=message)
        keys = [key for key, *_ in agent.turns]
        assert set(keys[:2]) == set(keys[2:])


async def test_open_webui_sends_several_requests_for_one_message_with_its_own_tools(path, agent):
    async with http_server(path, agent) as server:
        ui = OpenWebUI(server)
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        await ui.chat([user("one")], message="m1")
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "a plum"}
        assert await ui.chat([user("one"), called, result], message="m1") == "answer 2"


async def test_librechat_has_conversations_and_titles_of_another_endpoint(path, agent):
    async with http_server(path, agent) as server:
        ui = FrontEnd(server)
        body = {
            "model": "hermes", "user": "66b1", "stream": True, "temperature": 1, "top_p": 1,
            "presence_penalty": 0, "frequency_penalty": 0, "n": 1,
            "stream_options": {"include_usage": True},
        }  # fmt: skip

        async def chat(messages, message):
            headers = {
                "X-Hermes-Conversation": "5d1f-new", "X-Hermes-Message": message,
                "X-Hermes-User": "66b1",
            }  # fmt: skip
            return await ui.send({**body, "messages": messages}, headers)

        first = await chat([{"role": "system", "content": "Be kind."}, user("one")], "a1")
        title = [user("Provide a concise, 5-word-or-less title for the conversation.")]
        titled = {"model": "hermes", "messages": title, "stream": False, "temperature": 0.2}
        await ui.send({**titled, "user": "66b1"}, {})
        await chat([user("one"), assistant(first), user("two")], "a2")
        assert await kinds(server) == ["new"]
        assert ":temp_" in agent.turns[1][0]
        assert agent.turns[0][2].options.instructions == "Be kind."


async def test_continue_and_aider_leave_no_conversations(path, agent):
    async with http_server(path, agent) as server:
        ui = FrontEnd(server)
        tabs = {"model": "hermes", "messages": [user("Complete this.")], "max_tokens": 64}
        await ui.send({**tabs, "stop": ["\n\n"], "stream": False}, {})
        messages = [
            {"role": "system", "content": "Act as an expert software developer."},
            user("I switched to a new code base."),
            assistant("Ok."),
            user("Here are the files."),
            assistant("Ok, I will use them."),
            user("Rename f to g."),
        ]
        aider = {"model": "hermes", "messages": messages, "temperature": 0, "stream": True}
        await ui.send({**aider, "stream_options": {"include_usage": True}}, {})
        assert await kinds(server) == []
        assert agent.turns[1][1] == [each["content"] for each in messages[1:]]


async def test_the_user_names_the_conversation_if_that_is_configured(path, agent):
    config = HttpConfig(port=0, conversation_by_user=True, conversation_headers=("x-chat",))
    async with http_server(path, agent, config=config) as server:
        ui = FrontEnd(server)
        body = {"model": "hermes", "messages": [user("one")], "user": "ann"}
        await ui.send(body, {"X-Hermes-Conversation": "ignored"})
        await ui.send(body, {"X-Chat": "c9"})
        keys = [key for key, *_ in agent.turns]
        assert [key.rpartition(":")[2] for key in keys] == ["name%3Aann", "name%3Ac9"]
