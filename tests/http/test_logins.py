"""Bearer tokens of requests: which are accepted, limits, and what ends with a token."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import apsw
import httpx2
import pytest
import trio
from msgspec.structs import replace

from hermes.actors.runtime import open_actors
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.access.logins import FAILED, LIST_SECONDS, Logins
from hermes.adapters.http.credentials import digest_of
from hermes.adapters.http.errors import ApiError
from hermes.config import Config, RateLimit
from hermes.embed.agent import default_spec
from hermes.messages import Token
from hermes.store import open_store
from hermes.testing import CountingBuilder
from tests.support.http import Server, http_server, new_token
from tests.support.store_proxy import HoldFirst, Proxy

TOKEN = Token(id="tok_1", name="ann", namespace="ann", roles=("user",), created_at=0.0)
BODY = {"model": "hermes", "input": "hello"}


def scope(header, address="10.0.0.1"):
    headers = [] if header is None else [(b"authorization", header.encode())]
    return {"headers": headers, "client": (address, 5000)}


class Tokens:
    """The tokens of a store, and how often one was looked up."""

    def __init__(self, *secrets):
        self.found = {digest_of(secret): TOKEN for secret in secrets}
        self.lookups = self.lists = 0

    async def find(self, digest):
        self.lookups += 1
        await trio.lowlevel.checkpoint()
        return self.found.get(digest)

    async def list(self):
        self.lists += 1
        await trio.lowlevel.checkpoint()
        return [*self.found]


def logins(*secrets, **options):
    tokens = Tokens(*secrets)
    return Logins(tokens.find, tokens.list, **options)


async def status(login, *arguments):
    try:
        await login.caller(scope(*arguments))
    except ApiError as error:
        return error.status
    return 200


# Which header


@pytest.mark.parametrize("header", ["Bearer right", "bearer right", "BEARER  right "])
async def test_a_bearer_token_is_accepted(header):
    assert (await logins("right").caller(scope(header))).token == TOKEN


@pytest.mark.parametrize(
    "header",
    [
        None, "", "right", "Basic right", "Bearer", "Bearer ", "Bearer wrong", "Token right",
        "Bearer right x", "Bearer right,right", f"Bearer {'x' * 10_000}", "Bearerright",
    ],
)  # fmt: skip
async def test_other_headers_are_refused(header):
    assert await status(logins("right"), header) == 401


async def test_two_headers_are_refused():
    both = scope("Bearer right")
    both["headers"] *= 2
    with pytest.raises(ApiError, match="no bearer token"):
        await logins("right").caller(both)


async def test_neither_cookies_nor_query_parameters_are_accepted(path):
    async with http_server(path) as server:
        client = server.http("wrong")
        for name in ("token", "api_key", "access_token", "key", "authorization"):
            response = await client.get(
                "/v1/models",
                params={name: server.secret},
                headers={"Cookie": f"{name}={server.secret}"},
            )
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert server.secret not in response.text


# Failed attempts


async def test_too_many_failed_attempts_of_an_address_are_refused_without_a_lookup(autojump_clock):
    tokens = Tokens("right")
    login = Logins(tokens.find, tokens.list)
    results = [await status(login, f"Bearer {number}") for number in range(FAILED.burst + 5)]
    assert results == [401] * FAILED.burst + [429] * 5
    assert (tokens.lookups, tokens.lists) == (FAILED.burst, 1)
    assert await status(login, "Bearer x", "10.0.0.2") == 401
    await trio.sleep(60 / FAILED.per_minute)
    assert [await status(login, f"Bearer {number}") for number in range(2)] == [401, 429]
    assert login.failures == FAILED.burst + 8


async def test_attempts_at_the_same_time_are_counted_before_the_lookup():
    tokens = Tokens()
    login = Logins(tokens.find, tokens.list)
    results = []

    async def attempt(number):
        results.append(await status(login, f"Bearer {number}"))

    async with trio.open_nursery() as nursery:
        for number in range(FAILED.burst * 3):
            nursery.start_soon(attempt, number)
    assert results.count(401) == tokens.lookups == FAILED.burst


async def test_a_valid_token_is_not_locked_out_by_others_at_its_address(autojump_clock):
    tokens = Tokens("right", "new")
    login = Logins(tokens.find, tokens.list)
    assert await status(login, "Bearer right") == 200
    for number in range(FAILED.burst):
        assert await status(login, f"Bearer {number}") == 401
    assert await status(login, "Bearer right") == 200
    assert await status(login, "Bearer new") == 200  # also one that was not used before
    tokens.found.clear()  # revoked
    await trio.sleep(LIST_SECONDS)
    assert [await status(login, "Bearer right") for _ in range(2)] == [401, 429]


async def test_valid_tokens_are_not_counted():
    login = logins("right", "other")
    for _ in range(FAILED.burst * 3):
        assert await status(login, "Bearer right") == 200
        assert await status(login, "Bearer other") == 200


async def test_the_network_of_an_ipv6_client_counts_as_one_address(autojump_clock):
    login = logins()
    for number in range(FAILED.burst):
        assert await status(login, "Bearer x", f"2001:db8::{number:x}") == 401
    assert await status(login, "Bearer x", "2001:db8:0:0:ffff::1") == 429
    assert await status(login, "Bearer x", "2001:db8:0:1::1") == 401
    assert await status(login, "Bearer x", "::ffff:10.0.0.1") == 401


async def test_the_memory_of_addresses_and_tokens_is_bounded(autojump_clock):
    secrets = [f"s{number}" for number in range(10)]
    login = logins(*secrets, remembered=5)
    for number in range(FAILED.burst):
        assert await status(login, f"Bearer {number}") == 401
    for secret in secrets:
        assert await status(login, f"Bearer {secret}", "10.0.0.2") == 200
    known = [login.known(scope(f"Bearer {secret}")) is not None for secret in secrets]
    assert known == [False] * 5 + [True] * 5
    for number in range(5):
        assert await status(login, "Bearer wrong", f"10.0.1.{number}") == 401
    assert await status(login, "Bearer wrong") == 401


async def test_the_limit_says_when_to_try_again(path):
    async with http_server(path) as server:
        client = server.http("wrong")
        for _ in range(FAILED.burst):
            await client.get("/v1/models")
        response = await client.get("/v1/models")
        assert response.status_code == 429
        assert response.headers["retry-after"] == "6"
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert (await server.http().get("/v1/models")).status_code == 200  # from the same address


# Limits of one token


async def test_a_token_has_a_rate_of_requests(path):
    config = HttpConfig(port=0, rates=RateLimit(per_minute=0.001, burst=3))
    async with http_server(path, config=config) as server:
        client = server.http()
        results = [(await client.get("/v1/models")).status_code for _ in range(4)]
        assert results == [200, 200, 200, 429]
        other = server.http(await new_token(server.runtime, "bob"))
        assert (await other.get("/v1/models")).status_code == 200


class Held:
    """An agent whose turns wait."""

    def __init__(self):
        self.release = trio.Event()
        self.started = 0
        self.changed = trio.Event()

    async def __call__(self, turn):
        self.started += 1
        self.changed.set()
        self.changed = trio.Event()
        await self.release.wait()
        return "done"

    async def wait_started(self, number):
        while self.started < number:
            await self.changed.wait()


async def test_a_token_has_a_number_of_requests_at_the_same_time(path):
    held = Held()
    async with http_server(path, held, config=HttpConfig(port=0, max_streams=2)) as server:
        client, results = server.http(timeout=60), []

        async def ask():
            results.append((await client.post("/v1/responses", json=BODY)).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
            await held.wait_started(2)
            refused = await client.get("/v1/models")
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "too_many_streams"
            other = server.http(await new_token(server.runtime, "bob"))
            assert (await other.get("/v1/models")).status_code == 200
            held.release.set()
        assert results == [200, 200]
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_request_whose_answer_is_written_does_not_count(path):
    """Even if the store takes long to record the end of its connection."""
    hold = HoldFirst()
    async with (
        open_store(path) as store,
        open_actors(
            Proxy(store, end_connection=hold), build=CountingBuilder(), agent_spec=default_spec,
            config=Config(),
        ) as runtime,
        serve_http(runtime, HttpConfig(port=0, max_streams=1)) as url,
    ):  # fmt: skip
        server = Server(runtime, url, await new_token(runtime))
        client = server.http()
        assert (await client.post("/v1/responses", json=BODY)).status_code == 200
        await hold.entered.wait()
        seen = [(await client.get("/v1/models")).status_code for _ in range(3)]
        hold.release.set()
        await server.close_clients()
    assert seen == [200, 200, 200]


# The end of a token


def rows(path):
    """Return how many rows there are in the tables to which requests add."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    tables = ("inbox", "sessions", "routes", "responses", "files", "outbox")
    found = [db.execute(f"SELECT count(*) FROM {each}").get for each in tables]
    db.close()
    return found


async def revoke_here(server, _path):
    await server.runtime.api.revoke_token("ann")


async def revoke_elsewhere(_server, path):
    command = [sys.executable, "-m", "hermes", "tokens", "revoke", "ann", "--db", str(path)]
    await trio.to_thread.run_sync(lambda: subprocess.run(command, check=True, timeout=60))


@pytest.mark.parametrize("revoke", [revoke_here, revoke_elsewhere])
async def test_a_revoked_token_is_refused_at_once_and_its_open_requests_end(path, revoke):
    held = Held()
    async with http_server(path, held) as server:
        bob = server.http(await new_token(server.runtime, "bob"), timeout=60)
        client, results = server.http(timeout=60), {}

        async def ask(who, name):
            results[name] = await who.post("/v1/responses", json=BODY)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client, "ann")
                nursery.start_soon(ask, bob, "bob")
                await held.wait_started(2)
                await revoke(server, path)
                assert (await client.get("/v1/models")).status_code == 401
                while "ann" not in results:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                assert "bob" not in results
                held.release.set()
        assert results["ann"].status_code == 401
        assert json.loads(results["ann"].text)["error"]["message"] == "The token was revoked."
        assert results["bob"].status_code == 200


GIF = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": GIF}]}
CHAT = {"model": "hermes", "messages": [{"role": "user", "content": "hello"}]}


async def test_no_kind_of_request_has_an_effect_with_a_revoked_token(path):
    """A request whose message is accepted at once has its token checked there, others before."""
    async with http_server(path) as server:
        client = server.http()
        found = await client.post("/v1/conversations", json={})
        conversation = found.json()["id"]
        in_it = {**BODY, "conversation": conversation}
        first = (await client.post("/v1/responses", json=in_it)).json()
        requests = [
            ("/v1/responses", BODY, {}),
            ("/v1/responses", {**BODY, "stream": True}, {}),
            ("/v1/responses", {**BODY, "background": True}, {}),
            ("/v1/responses", {**BODY, "store": False}, {}),
            ("/v1/responses", BODY, {"Idempotency-Key": "a"}),
            ("/v1/responses", BODY, {"x-stainless-retry-count": "1"}),
            ("/v1/responses", {**BODY, "model": "hermes/other"}, {}),
            ("/v1/responses", {**BODY, "input": [IMAGE]}, {}),
            ("/v1/responses", in_it, {}),
            ("/v1/responses", {**BODY, "conversation": "conv_0"}, {}),
            ("/v1/responses", {**BODY, "previous_response_id": first["id"]}, {}),
            ("/v1/responses", {**BODY, "previous_response_id": "resp_0"}, {}),
            ("/v1/chat/completions", CHAT, {}),
            ("/v1/chat/completions", {**CHAT, "stream": True}, {}),
            ("/v1/chat/completions", {**CHAT, "model": "hermes/other"}, {}),
            ("/v1/chat/completions", {**CHAT, "metadata": {"conversation": "c"}}, {}),
            ("/v1/chat/completions", CHAT, {"X-Hermes-Message": "m"}),
        ]
        for number, (route, body, headers) in enumerate(requests):
            client = server.http(await new_token(server.runtime, f"{number}", namespace="ann"))
            assert (await client.get("/v1/models")).status_code == 200
            if headers:  # then it repeats a request
                assert (await client.post(route, json=body, headers=headers)).status_code == 200
            before = rows(path)
            await server.runtime.api.revoke_token(f"{number}")
            response = await client.post(route, json=body, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (
                401, "invalid_api_key",
            ), (route, body, headers)  # fmt: skip
            assert rows(path) == before


async def test_an_open_stream_ends_with_its_token(path):
    async with http_server(path) as server:
        received = ""
        with trio.fail_after(30):
            async with server.http().stream("GET", "/api/events") as stream:
                with pytest.raises(httpx2.RemoteProtocolError):
                    async for piece in stream.aiter_text():
                        received += piece
                        await server.runtime.api.revoke_token("ann")
        assert "event: reset" in received


async def test_the_open_requests_of_a_token_end_when_it_expires(path):
    held, secret = Held(), "hms_soon"
    async with http_server(path, held) as server:
        token = replace(TOKEN, name="soon", expires_at=time.time() + 0.3)
        await server.runtime.api.add_token(token, digest_of(secret))
        with trio.fail_after(30):
            response = await server.http(secret, timeout=60).post("/v1/responses", json=BODY)
        assert response.status_code == 401
        held.release.set()
