"""Every endpoint with the ids of another tenant, and with tokens of every role.

An endpoint without a case in `tests.support.tenants` fails the first test.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hermes.adapters.http.app import ENDPOINTS
from hermes.adapters.jsonrpc.methods import METHODS
from tests.support.http import http_server, new_token
from tests.support.tenants import (
    CANARY,
    CASES,
    Tenant,
    approving,
    facts_of,
    foreign_changes,
    name_of,
    rows_of,
    send,
)
from tests.support.websockets import Refused, hurried_websocket, open_websocket

WITH_TOKEN = [endpoint for endpoint in ENDPOINTS if endpoint.role is not None]


def test_every_endpoint_has_a_case():
    assert sorted(CASES) == sorted(map(name_of, ENDPOINTS))


@pytest.fixture
async def server(path):
    async with http_server(path, approving) as opened:
        yield opened


async def test_no_endpoint_gives_or_changes_anything_of_another_tenant(server):
    ann = await Tenant.prepare(server, server.secret, CANARY)
    bob = await Tenant.prepare(server, await new_token(server.runtime, "bob"), "bob")
    before = await facts_of(ann)
    # Lists come first: later bob has conversations with names that are ids of ann.
    for endpoint in sorted(ENDPOINTS, key=lambda each: each.method != "GET"):
        for case in CASES[name_of(endpoint)](ann, bob.key):
            status, body = await send(bob.client, endpoint, case)
            what = f"{endpoint.method} {case.url}: {status} {body[:300]}"
            assert status in case.expected(endpoint), what
            for secret in ann.secrets():
                assert secret in case.sent() or secret not in body, what
    assert await facts_of(ann) == before


@pytest.mark.parametrize(
    ("owner", "other"), [("token", "person"), ("person", "token"), ("person", "person")]
)
async def test_people_at_the_page_and_tokens_are_apart(server, owner, other):
    """Also if a person and a token have the same name. `/v1` is closed to people."""
    tenants = []
    for kind, word in ((owner, CANARY), (other, "bob")):
        if kind == "person":
            tenants.append(await Tenant.signed_in(server, word))
        else:
            secret = await new_token(server.runtime, f"usr_{word}")
            tenants.append(await Tenant.prepare(server, secret, word))
    ann, bob = tenants
    before = await facts_of(ann)
    for endpoint in sorted(ENDPOINTS, key=lambda each: each.method != "GET"):
        closed = other == "person" and endpoint.role and not endpoint.path.startswith("/api/")
        if endpoint.path == "/api/sign-out":
            continue
        for case in CASES[name_of(endpoint)](ann, bob.key):
            status, body = await send(bob.client, endpoint, case)
            what = f"{endpoint.method} {case.url}: {status} {body[:300]}"
            assert status in ({401} if closed else case.expected(endpoint)), what
            for secret in ann.secrets():
                assert secret in case.sent() or secret not in body, what
    assert await facts_of(ann) == before


async def test_no_change_of_another_tenant_reaches_the_store(server):
    """Each request that could change something; whatever changes is of the one who sent it."""
    ann = await Tenant.prepare(server, server.secret, CANARY)
    bob = await Tenant.prepare(server, await new_token(server.runtime, "bob"), "bob")
    owners = {each.name: each.id for each in await server.runtime.api.list_tokens()}
    changing = [each for each in ENDPOINTS if each.method != "GET"]
    assert len(changing) > 25
    for endpoint in changing:
        for case in CASES[name_of(endpoint)](ann, bob.key):
            before = await rows_of(server)
            status, body = await send(bob.client, endpoint, case)
            await trio.testing.wait_all_tasks_blocked(0.01)
            changes = foreign_changes(before, await rows_of(server), "dm:bob:", owners["bob"])
            assert changes == [], f"{endpoint.method} {case.url}: {status} {body[:300]}"


@pytest.mark.parametrize(("roles", "status"), [(("user",), 403), (("metrics",), 403), (None, 401)])
async def test_json_rpc_does_nothing_without_the_role(server, caplog, roles, status):
    """Not even with frames that are sent before the answer to the handshake."""
    ann = await Tenant.prepare(server, server.secret, CANARY)
    secret = "none" if roles is None else await new_token(server.runtime, "eve", roles=roles)
    before = await rows_of(server)
    named = {"session_id": ann.session, "session_key": ann.key, "text": "x", "title": "x"}
    frames = [
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        for method in METHODS
        for params in (named, {"session_id": ann.session}, {"session_key": ann.key})
    ]
    with pytest.raises(Refused) as refused:
        async with open_websocket(server.url, secret=secret):
            pass
    assert refused.value.status == status
    answer = await hurried_websocket(server.url, secret, frames)
    assert answer.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.1 400 "))
    assert b"HTTP" not in answer[8:]
    assert CANARY.encode() not in answer
    assert ann.session.encode() not in answer
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert foreign_changes(before, await rows_of(server)) == []
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_what_another_client_of_json_rpc_has_opened_cannot_be_used(server):
    ann = await Tenant.prepare(server, server.secret, CANARY)
    operator = await new_token(server.runtime, "op", roles=("operator",))
    async with (
        open_websocket(server.url, secret=operator) as first,
        open_websocket(server.url, secret=operator) as second,
    ):
        opened = await first.call("session.attach", session_key=ann.key)
        handle = opened["result"]["session_id"]
        before = await rows_of(server)
        for method, params in (("prompt.submit", {"text": "x"}), ("session.history", {})):
            answer = await second.call(method, session_id=handle, **params)
            assert "error" in answer, method
        assert foreign_changes(before, await rows_of(server)) == []


async def test_the_same_id_in_two_namespaces_names_two_conversations(server):
    ann = await Tenant.prepare(server, server.secret, CANARY)
    bob = server.http(await new_token(server.runtime, "bob"))
    before = await facts_of(ann)
    created = await bob.post("/api/conversations", json={"id": ann.conversation, "title": "mine"})
    assert created.status_code == 201
    url = f"/api/conversations/{ann.conversation}"
    assert (await bob.get(f"{url}/history")).json()["messages"] == []
    assert (await bob.post(f"{url}/messages", json={"text": "and now?"})).status_code == 200
    body = {"model": "hermes", "input": "and now?", "conversation": ann.conversation}
    assert (await bob.post("/v1/responses", json=body)).status_code == 200
    assert CANARY not in (await bob.get(f"{url}/history")).text
    assert CANARY in (await ann.client.get(f"{url}/history")).text
    assert await facts_of(ann) == before


async def test_an_idempotency_key_or_a_retry_does_not_reach_the_request_of_another_tenant(server):
    bob = server.http(await new_token(server.runtime, "bob"))
    body = {"model": "hermes", "input": "the same"}
    for headers in ({"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}):
        answers = [
            (await client.post("/v1/responses", json=body, headers=headers)).json()
            for client in (server.http(), bob)
        ]
        assert answers[0]["id"] != answers[1]["id"]
        assert answers[0]["conversation"] != answers[1]["conversation"]


async def test_the_cases_find_something_with_the_right_token(server):
    """Otherwise they would prove nothing."""
    ann = await Tenant.prepare(server, server.secret, CANARY)
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.role != "user":
            continue
        for case in CASES[name_of(endpoint)](ann, ann.key):
            status, body = await send(ann.client, endpoint, case)
            assert status == 200, f"{case.url}: {status} {body[:300]}"


@pytest.mark.parametrize(
    ("roles", "refused"),
    [
        (None, {"user": 401, "operator": 401, "metrics": 401}),
        (("metrics",), {"user": 403, "operator": 403}),
        (("user",), {"operator": 403, "metrics": 403}),
        (("operator",), {"metrics": 403}),
    ],
)
async def test_a_token_without_the_role_is_refused(server, roles, refused):
    ann = await Tenant.prepare(server, server.secret, CANARY)
    before = await facts_of(ann)
    secret = "none" if roles is None else await new_token(server.runtime, "eve", roles=roles)
    client = server.http(secret)
    if roles is None:
        del client.headers["Authorization"]
    for endpoint in WITH_TOKEN:
        if endpoint.role not in refused:
            continue
        for case in CASES[name_of(endpoint)](ann, ann.key):
            with trio.fail_after(30):
                status, body = await send(client, endpoint, case)
            assert status == refused[endpoint.role], f"{endpoint.method} {case.url}: {body}"
            assert CANARY not in body
    assert await facts_of(ann) == before
