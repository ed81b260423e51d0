"""Webhooks: a signed event is stored once, and starts one turn."""

from __future__ import annotations

import base64
import json
import os
import time

import pytest
import trio

import hermes
from hermes import AccessPolicy, Attachment, RateLimit, RetryAfter, TurnResult
from hermes.adapters.http import HttpConfig
from hermes.adapters.http.hooks.registry import hook_rules, open_hooks
from hermes.adapters.http.hooks.signatures import SCHEMES, sign
from hermes.messages import Inbound, Source
from hermes.run.references import check_references, secret_values
from hermes.run.reload import access_rules
from hermes.session_keys import session_key
from hermes.settings import Reference, SettingsError, load
from hermes.settings.http import HookTable
from hermes.testing import MemoryAdapter
from tests.support.http import http_server

KEY = b"a secret of the service"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
TELEGRAM = "agent:main:telegram:dm:42"


@pytest.fixture
def config(monkeypatch):
    """A server with three webhooks."""
    monkeypatch.setenv("STANDARD", SECRET)
    monkeypatch.setenv("PLAIN", KEY.decode())
    hooks = {
        "ci": HookTable(secret=Reference("env:STANDARD"), max_body=1000),
        "git": HookTable(
            secret=Reference("env:PLAIN"), scheme="github", conversation="pulls",
            text="{action}: {title}",
        ),
        "chat": HookTable(
            secret=Reference("env:PLAIN"), scheme="github", conversation=TELEGRAM
        ),
    }  # fmt: skip
    return HttpConfig(port=0, hooks=hooks)


def standard(body, event_id="msg_1", at=None, key=KEY):
    """The headers of an event of Standard Webhooks."""
    stamp = str(int(time.time() if at is None else at))
    signature = sign(SCHEMES["standard"], key, f"{event_id}.{stamp}.".encode() + body)
    return {
        "webhook-id": event_id, "webhook-timestamp": stamp, "webhook-signature": signature,
    }  # fmt: skip


def github(body, event_id="1"):
    signature = sign(SCHEMES["github"], KEY, body)
    return {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": event_id}


def anonymous(server):
    client = server.http("none")
    del client.headers["Authorization"]
    return client


async def texts_of(server, key):
    """The messages of a conversation, once all its turns have ended."""
    with trio.fail_after(30):
        while (await server.runtime.admin.statistics()).store.inbox_open:
            await trio.testing.wait_all_tasks_blocked(0.01)
    return [row.content for row in await server.runtime.conversation(key).history()]


def own_key(name, thread=None):
    return session_key(Source(platform="hook", chat_id=name, thread_id=thread))


async def test_an_event_is_stored_before_202_and_starts_a_turn(path, config):
    async with http_server(path, config=config) as server:
        body = b'{"build": "failed"}'
        response = await anonymous(server).post("/hooks/ci", content=body, headers=standard(body))
        assert response.status_code == 202
        assert response.json()["event_id"] == "msg_1"
        stored = await server.runtime.api.get_response(response.json()["id"])
        assert stored.connection == "complete"
        assert stored.credential == "hook:ci"
        said = await texts_of(server, own_key("ci"))
        assert said == [body.decode(), f"echo: {body.decode()}"]
        stored = await server.runtime.api.get_response(response.json()["id"])
        assert stored.reply.text == f"echo: {body.decode()}"


async def test_a_repeated_event_gets_202_again_and_no_second_turn(path, config):
    async with http_server(path, config=config) as server:
        client, body = anonymous(server), b"one"
        first = await client.post("/hooks/ci", content=body, headers=standard(body))
        again = await client.post("/hooks/ci", content=body, headers=standard(body))
        assert [first.status_code, again.status_code] == [202, 202]
        assert first.json() == again.json()
        other = await client.post("/hooks/ci", content=body, headers=standard(body, "msg_2"))
        assert other.json()["id"] != first.json()["id"]
        assert await texts_of(server, own_key("ci")) == ["one", "echo: one"] * 2


async def test_events_at_the_same_time_are_one_turn(path, config):
    async with http_server(path, config=config) as server:
        client, body, answers = anonymous(server), b"one", []

        async def post():
            answers.append(await client.post("/hooks/ci", content=body, headers=standard(body)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(post)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert await texts_of(server, own_key("ci")) == ["one", "echo: one"]


async def test_the_turn_runs_in_the_configured_conversation_with_the_text(path, config):
    async with http_server(path, config=config) as server:
        client = anonymous(server)
        body = json.dumps({"action": "opened", "title": "/new things"}).encode()
        assert (await client.post("/hooks/git", content=body, headers=github(body))).is_success
        assert await client.post("/hooks/chat", content=b"/stop", headers=github(b"/stop"))
        said = await texts_of(server, own_key("git", "pulls"))
        assert said == ["opened: /new things", "echo: opened: /new things"]
        assert await texts_of(server, TELEGRAM) == ["/stop", "echo: /stop"]  # never a command
        assert (await server.runtime.admin.statistics()).store.outbox == ()


async def test_the_reply_is_sent_once_to_the_chat_of_the_settings(path, config):
    """Also if the process ends between the commit of the turn and the delivery."""
    table = HookTable(secret=Reference("env:STANDARD"), deliver=TELEGRAM)
    config = HttpConfig(port=0, hooks={"ci": table})
    body = b"one"
    later = MemoryAdapter("telegram", errors=[RetryAfter("later", 1e6)], account="7")
    async with http_server(path, config=config, adapters=[later]) as server:
        for _ in range(2):
            sent = await anonymous(server).post("/hooks/ci", content=body, headers=standard(body))
            assert sent.status_code == 202
        assert await texts_of(server, own_key("ci")) == ["one", "echo: one"]
    adapter = MemoryAdapter("telegram", account="7")
    async with http_server(path, config=config, adapters=[adapter], secret="none") as server:
        again = await anonymous(server).post("/hooks/ci", content=body, headers=standard(body))
        assert again.json() == sent.json()
        with trio.fail_after(30):
            await adapter.wait_sent(1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await texts_of(server, TELEGRAM) == []  # it has its own conversation
    assert later.sent == []
    assert adapter.texts == ["echo: one"]
    assert (adapter.sent[0].body["chat_id"], adapter.sent[0].session_key) == ("42", own_key("ci"))


async def test_the_files_of_a_reply_are_sent_to_the_chat_as_well(path, config):
    async def agent(turn):
        return TurnResult(text="", files=[Attachment(data=b"report", name="a.txt")])

    table = HookTable(secret=Reference("env:STANDARD"), deliver=TELEGRAM)
    config, adapter = HttpConfig(port=0, hooks={"ci": table}), MemoryAdapter("telegram")
    async with http_server(path, agent, config=config, adapters=[adapter]) as server:
        await anonymous(server).post("/hooks/ci", content=b"x", headers=standard(b"x"))
        with trio.fail_after(30):
            await adapter.wait_sent(1)
    assert [each.data for each in adapter.files] == [b"report"]


async def test_a_challenge_is_repeated_if_it_is_signed(path, config):
    """Slack verifies a URL so before it sends events; the challenge is no event."""
    hooks = {"slack": HookTable(secret=Reference("env:PLAIN"), scheme="slack")}
    async with http_server(path, config=HttpConfig(port=0, hooks=hooks)) as server:
        client, stamp = anonymous(server), str(int(time.time()))
        body = json.dumps({"token": "t", "challenge": "3eZbrw", "type": "url_verification"})
        signature = sign(SCHEMES["slack"], KEY, f"v0:{stamp}:{body}".encode())
        headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": signature}
        verified = await client.post("/hooks/slack", content=body, headers=headers)
        assert (verified.status_code, verified.json()) == (200, {"challenge": "3eZbrw"})
        document = (await server.http().get("/api/openapi.json")).json()
        described = document["paths"]["/hooks/{name}"]["post"]["responses"]
        assert "Challenge" in str(described["200"])
        headers["X-Slack-Signature"] = "v0=" + 64 * "0"
        refused = await client.post("/hooks/slack", content=body, headers=headers)
        assert refused.status_code == 401
        assert "3eZbrw" not in refused.text
        assert await texts_of(server, own_key("slack")) == []


async def test_what_is_not_signed_now_with_the_secret_is_refused_in_one_sentence(path, config):
    async with http_server(path, config=config) as server:
        client, body = anonymous(server), b"one"
        refused = [
            {},
            standard(b"two"),
            standard(body, key=b"another"),
            standard(body, at=time.time() - 1000),
            standard(body, at=time.time() + 1000),
            {**standard(body), "webhook-id": "msg_2"},
            {"Authorization": f"Bearer {server.secret}"},
        ]
        for headers in refused:
            response = await client.post("/hooks/ci", content=body, headers=headers)
            assert response.status_code == 401
            error = response.json()["error"]
            assert error["code"] == "invalid_signature"
            assert error["message"].count(".") == 1
        assert await texts_of(server, own_key("ci")) == []
        missing = await client.post("/hooks/none", content=body, headers=standard(body))
        assert missing.status_code == 404
        assert (await client.get("/hooks/ci")).status_code == 405
        long = b"x" * 1001
        response = await client.post("/hooks/ci", content=long, headers=standard(long))
        assert response.status_code == 413
        empty = await client.post("/hooks/ci", content=b" ", headers=standard(b" "))
        assert empty.status_code == 400


async def test_a_webhook_is_a_principal_of_its_own_and_nobody_else_is_let_in(path, config):
    rates = RateLimit(per_minute=0.01, burst=2)
    policy = AccessPolicy(rules=hook_rules(config), rates=rates)
    async with http_server(path, config=config, access=policy) as server:
        client, body = anonymous(server), b"one"
        results = []
        for number in range(3):
            headers = standard(body, f"msg_{number}")
            results.append(await client.post("/hooks/ci", content=body, headers=headers))
        assert [each.status_code for each in results] == [202, 202, 429]
        assert "retry-after" in results[2].headers
        for other in (
            Source(platform="hook", account="ci", user_id="hook:git"),
            Source(platform="hook", account="git", user_id="hook:ci"),
            Source(platform="hook", account="none", user_id="hook:none"),
            Source(platform="hook", account="ci"),
        ):
            with pytest.raises(hermes.NotAdmitted):
                await server.runtime.submit(Inbound("k", "e", "hello", other))
        assert len(await texts_of(server, own_key("ci"))) == 4
        assert (await server.runtime.admin.statistics()).store.outbox == ()


SETTINGS = """
[http.hooks.ci]
secret = "env:STANDARD"

[http.hooks.git]
secret = "env:PLAIN"
scheme = "custom"
signature_header = "X-Signature"
conversation = "pulls"
"""


@pytest.mark.usefixtures("config")
def test_webhooks_are_in_the_settings(monkeypatch):
    settings = load(SETTINGS, {}, os.environ, check_references)
    assert settings.http.hooks["git"].conversation == "pulls"
    assert {SECRET, KEY.decode()} <= set(secret_values(settings))
    rules = access_rules(settings)
    assert rules["hook", "ci"].role_of(Source("hook", "ci", user_id="hook:ci")) == "user"
    assert rules["hook", "git"].role_of(Source("hook", "git", user_id="hook:ci")) is None
    monkeypatch.setenv("STANDARD", "not base64!")
    with pytest.raises(SettingsError, match=r"http\.hooks\.ci\.secret.*must be base64"):
        load(SETTINGS, {}, os.environ, check_references)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[http.hooks.ci]\nsecret = "whsec_abc"', "secrets do not belong in this file"),
        ("[http.hooks.ci]\nscheme = 'github'", "secret"),
        ("[http.hooks.'a/b']\nsecret = 'env:STANDARD'", "a/b"),
        ("[http.hooks.ci]\nsecret = 'env:STANDARD'\nscheme = 'custom'", "signature_header"),
        (
            "[http.hooks.ci]\nsecret = 'env:STANDARD'\ndeliver = 'me'",
            "not the session key of a chat",
        ),
    ],
)
@pytest.mark.usefixtures("config")
def test_wrong_settings_of_webhooks_are_one_sentence(text, reason):
    with pytest.raises(SettingsError, match=reason) as caught:
        load(text, {}, os.environ, check_references)
    assert "whsec_abc" not in str(caught.value)


def test_a_missing_secret_is_one_sentence(config, monkeypatch):
    monkeypatch.delenv("STANDARD")
    with pytest.raises(
        ValueError, match="'ci' cannot be served: the environment variable STANDARD"
    ):
        open_hooks(config)
    monkeypatch.setenv("STANDARD", "not base64!")
    with pytest.raises(ValueError, match="must be base64") as caught:
        open_hooks(config)
    assert "not base64!" not in str(caught.value)
