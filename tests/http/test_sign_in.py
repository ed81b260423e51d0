"""Signing in to the page: one-time tokens, cookies, sessions, and who may use them."""

from __future__ import annotations

import re
from functools import partial

import httpx2
import pytest
import trio

from hermes.actors.admission.access import AccessPolicy, PlatformRules
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.access.cookies import session_secret
from hermes.adapters.http.access.logins import FAILED
from hermes.adapters.http.credentials import digest_of, new_secret
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.web import people
from hermes.messages import Person, TurnResult, Usage
from hermes.testing import inspect
from tests.support.http import Server, http_server, new_token, sign_in

ANN = Person(namespace="usr_ann", name="Ann", role="user")
BOB = Person(namespace="usr_bob", name="Bob", role="user")
SECRET = "hmw_" + "a" * 43


@pytest.fixture
async def server(path):
    access = AccessPolicy(rules={each: PlatformRules(pairing=True) for each in ("http", "web")})
    async with http_server(path, access=access) as opened:
        yield opened


async def link(server, person=ANN):
    """A one-time token, as `hermes web` makes one."""
    token = new_secret(people.LINK_PREFIX)
    await server.runtime.api.add_sign_in(digest_of(token), person)
    return token


def cookie_of(server, client):
    return client.cookies[f"hermes-{server.url.rpartition(':')[2]}"]


def with_cookie(server, secret, **headers):
    """A client that sends a cookie and nothing that a browser adds, except these headers."""
    client = server.browser()
    client.headers = {"Cookie": f"hermes-{server.url.rpartition(':')[2]}={secret}", **headers}
    return client


# One-time tokens


async def test_a_one_time_token_is_exchanged_for_a_session(server):
    client, token = server.browser(), await link(server)
    client.headers["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:1) Gecko Firefox/150.0"
    answer = await client.post("/api/sign-in", json={"token": token})
    assert answer.status_code == 200
    me = answer.json()
    assert (me["name"], me["user"], me["platform"]) == ("Ann", "usr_ann", "web")
    assert me["roles"] == ["user"]
    assert (await client.get("/api/me")).json() == me
    [session] = (await client.get("/api/web-sessions")).json()["sessions"]
    assert (session["client"], session["current"]) == ("Firefox on Linux", True)
    assert token not in answer.text
    assert cookie_of(server, client) not in answer.text


async def test_the_cookie_is_for_this_server_and_no_script(server):
    answer = await server.browser().post("/api/sign-in", json={"token": await link(server)})
    [cookie] = answer.headers.get_list("set-cookie")
    port = server.url.rpartition(":")[2]
    assert re.fullmatch(
        rf"hermes-{port}=hmw_[\w-]{{43}}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict",
        cookie,
    )
    assert answer.headers["cache-control"] == "no-store"


async def test_a_one_time_token_works_once_also_at_the_same_time(server):
    token, statuses = await link(server), []

    async def use():
        answer = await server.browser().post("/api/sign-in", json={"token": token})
        statuses.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(use)
    assert sorted(statuses) == [200, 403, 403, 403, 403]
    answer = await server.browser().post("/api/sign-in", json={"token": token})
    assert answer.json()["error"]["code"] == "link_expired"
    assert "set-cookie" not in answer.headers


async def test_a_one_time_token_is_stored_as_a_hash_and_is_no_credential(server):
    token = await link(server)
    rows = await inspect(server.runtime).store.browse(lambda tx: tx.all("SELECT * FROM sign_ins"))
    assert token not in str(rows)
    assert (await server.http(token).get("/api/me")).status_code == 401
    assert (await with_cookie(server, token).get("/api/me")).status_code == 401
    [(digest, *_)] = rows
    answer = await server.browser().post("/api/sign-in", json={"token": digest})
    assert answer.status_code == 403


async def test_no_one_time_token_outlives_the_server(server):
    token = await link(server)
    async with serve_http(server.runtime, HttpConfig(port=0)):
        pass
    assert (await server.browser().post("/api/sign-in", json={"token": token})).status_code == 403


async def test_too_many_wrong_one_time_tokens_are_refused(server):
    client = server.browser()
    body = {"token": "wrong"}
    answers = [await client.post("/api/sign-in", json=body) for _ in range(FAILED.burst + 1)]
    assert [each.status_code for each in answers] == [403] * FAILED.burst + [429]
    assert "retry-after" in answers[-1].headers


async def test_a_one_time_token_in_the_address_is_not_considered(server):
    token = await link(server)
    client = server.browser()
    for path in (f"/?token={token}", f"/api/me?token={token}"):
        assert "set-cookie" not in (await client.get(path)).headers
    assert (await client.post(f"/api/sign-in?token={token}", json={})).status_code == 400
    assert (await client.get(f"/api/sign-in?token={token}")).status_code == 405


async def test_a_form_or_another_page_cannot_sign_in(server):
    token = await link(server)
    client = server.browser()
    form = await client.post("/api/sign-in", data={"token": token})
    assert form.status_code == 415
    for headers in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}):
        answer = await client.post("/api/sign-in", json={"token": token}, headers=headers)
        assert answer.status_code == 403
    assert (await client.post("/api/sign-in", json={"token": token})).status_code == 200


# What a session may do


async def test_a_session_uses_the_api_under_the_platform_web(server):
    client = server.browser()
    await sign_in(server, client, ANN)
    created = (await client.post("/api/conversations", json={})).json()
    assert created["session_key"].startswith("agent:main:web:dm:usr_ann:conv_")
    assert created["platform"] == "web"
    url = f"/api/conversations/{created['id']}/messages"
    sent = await client.post(url, json={"text": "hello"})
    assert (sent.status_code, sent.json()["reply"]["text"]) == (200, "echo: hello")
    again = server.browser()
    await sign_in(server, again, ANN)
    listed = (await again.get("/api/conversations")).json()["conversations"]
    assert [each["id"] for each in listed] == [created["id"]]


async def test_the_costs_of_a_person_are_those_of_all_browsers(path):
    async def costly(turn):
        return TurnResult(text="ok", usage=(Usage(input_tokens=1, cost=0.5),))

    async with http_server(path, costly) as server:
        for person, browsers in ((ANN, 2), (BOB, 1)):
            for _ in range(browsers):
                client = server.browser()
                await sign_in(server, client, person)
                rest = "/api/conversations/name:trip/messages"
                assert (await client.post(rest, json={"text": "hello"})).status_code == 200
        costs = await server.runtime.api.costs_today()
    assert {each.payer: each.cost for each in costs.payers} == {
        "web/usr_ann": 1,
        "web/usr_bob": 0.5,
    }


async def test_without_rules_for_the_web_nobody_sends_a_message(path):
    access = AccessPolicy(rules={"http": PlatformRules(pairing=False)})
    async with http_server(path, access=access) as server:
        client = server.browser()
        await sign_in(server, client, ANN)
        answer = await client.post("/api/conversations/name:x/messages", json={"text": "hello"})
        assert answer.status_code == 403
        asked = await server.browser().post("/api/access-requests", json={"name": "Eve"})
        assert asked.status_code == 403
        assert (await server.runtime.api.pairings()) == []


@pytest.mark.parametrize("path_", ["/v1/models", "/metrics", "/v1/files", "/v1/conversations/x"])
async def test_a_cookie_opens_nothing_but_the_api(server, path_):
    client = server.browser()
    await sign_in(server, client)
    assert (await client.get("/api/me")).status_code == 200
    assert (await client.get(path_)).status_code == 401


async def test_the_secret_of_a_session_is_no_bearer_token_and_the_other_way_round(server):
    client = server.browser()
    await sign_in(server, client)
    secret = cookie_of(server, client)
    for path in ("/api/me", "/v1/models"):
        assert (await server.http(secret).get(path)).status_code == 401
    operator = await new_token(server.runtime, "op", roles=("operator",))
    for each in (operator, f"hmw_{operator[4:]}", server.secret):
        assert (await with_cookie(server, each).get("/api/me")).status_code == 401


async def test_a_token_in_the_header_is_used_instead_of_the_cookie(server):
    client = server.browser()
    await sign_in(server, client)
    client.headers["Authorization"] = f"Bearer {server.secret}"
    assert (await client.get("/api/me")).json()["name"] == "ann"
    client.headers["Authorization"] = "Bearer wrong"
    assert (await client.get("/api/me")).status_code == 401


async def test_the_role_of_a_person_counts(server):
    client = server.browser()
    await sign_in(server, client, ANN)
    for path in ("/api/status", "/api/pairings"):
        assert (await client.get(path)).status_code == 403
    assert (await client.post("/api/tickets")).status_code == 403
    await sign_in(server, operator := server.browser())
    assert (await operator.get("/api/status")).status_code == 200


# Other pages


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "ours"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "ours", "Sec-Fetch-Site": "same-origin"}, 200),
        ({}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "ours", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_what_changes_something_must_come_from_our_page(server, headers, status):
    await sign_in(server, signed_in := server.browser(), ANN)
    headers = {name: each.replace("ours", server.url) for name, each in headers.items()}
    client = with_cookie(server, cookie_of(server, signed_in), **headers)
    answer = await client.post("/api/conversations/name:x/messages", json={"text": "hello"})
    assert answer.status_code == status
    messages = (await signed_in.get("/api/conversations/name:x/history")).json()["messages"]
    assert bool(messages) == (status == 200)


@pytest.mark.parametrize(
    ("site", "status"), [("same-origin", 200), ("none", 200), ("same-site", 403)]
)
async def test_another_port_of_the_host_cannot_read(server, site, status):
    """A page of another port has our cookie: ports do not count for browsers."""
    await sign_in(server, signed_in := server.browser())
    secret = cookie_of(server, signed_in)
    client = with_cookie(server, secret, **{"Sec-Fetch-Site": site})
    assert (await client.get("/api/status")).status_code == status
    assert (await with_cookie(server, secret).get("/api/status")).status_code == 200


async def test_a_foreign_name_of_the_server_gets_nothing(server):
    """DNS rebinding: the page of evil.example has changed its address to ours."""
    await sign_in(server, client := server.browser())
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert (await client.get("/api/me", headers=headers)).status_code == 421
    body = {"token": await link(server)}
    assert (await client.post("/api/sign-in", json=body, headers=headers)).status_code == 421


async def test_a_configured_origin_of_v1_cannot_use_a_session(path):
    config = HttpConfig(port=0, origins={"https://chat.example"})
    async with http_server(path, config=config) as server:
        await sign_in(server, client := server.browser())
        client.headers["Origin"] = "https://chat.example"
        assert (await client.get("/api/me")).status_code == 403
        assert (await client.get("/v1/models")).status_code == 401


# Cookies


def scope(*cookies, host="127.0.0.1:8420", method="GET", origin=None):
    headers = [(b"host", host.encode()), *((b"cookie", each.encode()) for each in cookies)]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    return {"headers": headers, "method": method, "type": "http"}


OTHER = "hmw_" + "b" * 43


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        ([f"hermes-8420={SECRET}"], SECRET),
        ([f"a=b; hermes-8420={SECRET}; c"], SECRET),
        (["a=b", f"hermes-8420={SECRET}"], SECRET),
        ([f"hermes-8420={SECRET}", f"hermes-8420={SECRET}"], SECRET),
        ([f"hermes-8420=x; hermes-8420={SECRET}"], SECRET),
        ([f"__Host-hermes-8420={SECRET}; hermes-8420={OTHER}"], SECRET),
        ([f"hermes-8420={SECRET}; hermes-8420={OTHER}"], None),
        ([f"hermes-8421={SECRET}"], None),
        ([f"hermes={SECRET}"], None),
        ([f"Hermes-8420={SECRET}"], None),
        ([f'hermes-8420="{SECRET}"'], None),
        ([f"hermes-8420={SECRET}x"], None),
        ([f"x=hermes-8420={SECRET}"], None),
        (["hermes-8420"], None),
        (["=; ;;=" * 1000], None),
        ([], None),
    ],
)
def test_which_cookie_is_ours(cookies, found):
    assert session_secret(scope(*cookies)) == found


def test_each_name_and_port_has_its_own_cookie():
    for host, name in (("chat.example", "hermes"), ("[::1]:80", "hermes-80")):
        assert session_secret(scope(f"{name}={SECRET}", host=host)) == SECRET


def test_without_a_cookie_nothing_is_said_about_the_page():
    assert session_secret(scope(method="POST")) is None
    with pytest.raises(ApiError, match="did not come from the page"):
        session_secret(scope(f"hermes-8420={SECRET}", method="POST"))


async def test_behind_tls_the_cookie_is_sent_over_tls_only(path):
    config = HttpConfig(port=0, hosts={"chat.example"})
    async with http_server(path, config=config) as server:
        client = server.browser()
        client.headers |= {"Host": "chat.example", "Origin": "https://chat.example"}
        answer = await client.post("/api/sign-in", json={"token": await link(server)})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-hermes=hmw_")
        assert cookie.endswith("; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict; Secure")
        client.headers["Cookie"] = cookie.partition(";")[0]
        assert (await client.get("/api/me")).json()["name"] == "Ann"
        gone = await client.post("/api/sign-out")
        assert gone.headers["set-cookie"].startswith("__Host-hermes=; Path=/; Max-Age=0;")
        assert gone.headers["set-cookie"].endswith("; Secure")


async def test_a_flood_of_cookies_is_refused_and_the_server_goes_on(server):
    await sign_in(server, client := server.browser())
    secret = cookie_of(server, client)
    flood = with_cookie(server, secret)
    flood.headers["Cookie"] += "; hermes=x" * 1000
    assert (await flood.get("/api/me")).status_code == 200
    flood.headers["Cookie"] += "; hermes=x" * 5000
    assert (await flood.get("/api/me")).status_code in {400, 431}
    assert (await client.get("/api/me")).status_code == 200


async def test_two_servers_have_a_session_each_in_one_browser(server):
    async with serve_http(server.runtime, HttpConfig(port=0)) as url:
        other = Server(server.runtime, url, server.secret)
        await sign_in(server, client := server.browser(), ANN)
        await sign_in(other, second := other.browser(), BOB)
        both = "; ".join(
            f"hermes-{each.url.rpartition(':')[2]}={cookie_of(each, one)}"
            for each, one in ((server, client), (other, second))
        )
        for each, name in ((server, "Ann"), (other, "Bob")):
            browser = each.browser()
            browser.headers["Cookie"] = both
            assert (await browser.get("/api/me")).json()["name"] == name
        await other.close_clients()


# The end of a session


async def test_signing_out_ends_the_session_and_removes_the_cookie(server):
    await sign_in(server, client := server.browser(), ANN)
    secret = cookie_of(server, client)
    answer = await client.post("/api/sign-out")
    assert answer.json() == {"signed_out": True}
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not client.cookies
    refused = await with_cookie(server, secret).get("/api/me")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "session_ended")
    assert "Max-Age=0" in refused.headers["set-cookie"]
    assert (await client.post("/api/sign-out")).json() == {"signed_out": False}


async def test_another_page_cannot_sign_out(server):
    await sign_in(server, client := server.browser(), ANN)
    for headers in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}):
        assert (await client.post("/api/sign-out", headers=headers)).status_code == 403
    assert (await client.get("/api/me")).status_code == 200


async def test_a_new_session_replaces_the_one_of_this_browser(server):
    await sign_in(server, client := server.browser(), ANN)
    before = cookie_of(server, client)
    await sign_in(server, client, ANN)
    assert cookie_of(server, client) != before
    assert (await with_cookie(server, before).get("/api/me")).status_code == 401
    assert len((await client.get("/api/web-sessions")).json()["sessions"]) == 1


async def test_a_cookie_that_was_planted_is_not_kept(server):
    """Session fixation: whoever knows the old cookie has nothing of the new session."""
    await sign_in(server, attacker := server.browser(), BOB)
    planted = cookie_of(server, attacker)
    victim = with_cookie(server, planted, Origin=server.url)
    token = await link(server)
    answer = await victim.post("/api/sign-in", json={"token": token})
    assert answer.json()["error"]["code"] == "other_person"
    answer = await victim.post("/api/sign-in", json={"token": token, "switch": True})
    assert answer.json()["name"] == "Ann"
    assert planted not in answer.headers["set-cookie"]
    assert (await attacker.get("/api/me")).status_code == 401


async def test_a_link_for_somebody_else_does_not_replace_a_session_unasked(server):
    await sign_in(server, client := server.browser(), ANN)
    token = await link(server, BOB)
    refused = await client.post("/api/sign-in", json={"token": token})
    assert refused.status_code == 409
    assert refused.json()["error"]["message"] == (
        "You are signed in as Ann, and the link is for Bob."
    )
    assert (await client.get("/api/me")).json()["name"] == "Ann"
    switched = await client.post("/api/sign-in", json={"token": token, "switch": True})
    assert switched.json()["name"] == "Bob"


async def test_an_own_session_can_be_revoked_and_another_one_cannot(server):
    await sign_in(server, client := server.browser(), ANN)
    phone = await sign_in(server, server.browser(), ANN)
    bob = await sign_in(server, other := server.browser(), BOB)
    listed = (await client.get("/api/web-sessions")).json()["sessions"]
    assert {each["user"] for each in listed} == {"usr_ann"}
    assert len(listed) == 2
    assert (await client.delete(f"/api/web-sessions/{bob['id']}")).status_code == 404
    gone = await client.delete(f"/api/web-sessions/{phone['id']}")
    assert gone.json()["id"] == phone["id"]
    assert (await client.delete(f"/api/web-sessions/{phone['id']}")).status_code == 404
    me = (await client.get("/api/me")).json()
    assert (await client.delete(f"/api/web-sessions/{me['id']}")).status_code == 400
    assert (await other.get("/api/me")).status_code == 200


async def test_an_operator_sees_and_revokes_all_sessions(server):
    ann = await sign_in(server, client := server.browser(), ANN)
    await sign_in(server, operator := server.browser())
    listed = (await operator.get("/api/web-sessions")).json()["sessions"]
    assert [each["name"] for each in listed] == ["Operator", "Ann"]
    assert (await operator.delete(f"/api/web-sessions/{ann['id']}")).status_code == 200
    assert (await client.get("/api/me")).status_code == 401


async def test_bearer_tokens_of_users_see_no_sessions(server):
    await sign_in(server, server.browser(), Person(namespace="ann", name="Ann", role="user"))
    assert (await server.http().get("/api/web-sessions")).json() == {"sessions": []}
    answer = await server.http().post("/api/sign-in-links")
    assert answer.status_code == 403


@pytest.mark.parametrize("how", ["revoked", "signed out", "removed", "in the store"])
async def test_the_streams_of_a_session_end_with_it(server, how):
    me = await sign_in(server, client := server.browser(timeout=60), ANN)
    secret, api = cookie_of(server, client), server.runtime.api
    end = {
        "revoked": partial(api.revoke_token, me["id"]),
        "signed out": partial(with_cookie(server, secret, Origin=server.url).post, "/api/sign-out"),
        "removed": partial(api.unpair, "web", "usr_ann"),
        "in the store": partial(inspect(server.runtime).store.revoke_token, me["id"]),
    }[how]
    with trio.fail_after(60):
        async with client.stream("GET", "/api/events") as stream:
            received = stream.aiter_bytes()
            assert await anext(received)
            await end()
            with pytest.raises(httpx2.TransportError):
                async for _ in received:
                    pass
    assert (await with_cookie(server, secret).get("/api/me")).status_code == 401


async def test_a_session_that_has_expired_is_refused(server):
    await sign_in(server, client := server.browser(), ANN)
    sql = "UPDATE tokens SET expires_at = 1 WHERE platform = 'web'"
    await inspect(server.runtime).store.transact(lambda tx: tx.run(sql))
    refused = await client.get("/api/me")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "session_ended")


async def test_sessions_outlive_the_bot(path):
    async with http_server(path) as server:
        await sign_in(server, client := server.browser(), ANN)
        secret, token = cookie_of(server, client), await link(server)
    async with http_server(path, secret="unused") as server:
        answer = await with_cookie(server, secret).get("/api/me")
        assert answer.json()["name"] == "Ann"
        refused = await server.browser().post("/api/sign-in", json={"token": token})
        assert refused.status_code == 403


async def test_a_session_signs_in_another_browser_of_the_same_person(server):
    await sign_in(server, client := server.browser(), ANN)
    made = await client.post("/api/sign-in-links")
    assert (made.status_code, made.json()["expires_in"]) == (201, 60)
    phone = server.browser()
    me = (await phone.post("/api/sign-in", json={"token": made.json()["token"]})).json()
    assert (me["user"], me["name"], me["roles"]) == ("usr_ann", "Ann", ["user"])


async def test_no_secret_is_logged(server, caplog):
    caplog.set_level("DEBUG")
    token = await link(server)
    client = server.browser()
    await client.post("/api/sign-in", json={"token": token})
    await client.post("/api/sign-in", json={"token": token})
    secret = cookie_of(server, client)
    await client.post("/api/sign-out")
    await with_cookie(server, secret).get("/api/me")
    own = [each.getMessage() for each in caplog.records if not each.name.startswith("http")]
    assert not [each for each in own if token in each or secret in each]


# Asking for access


async def ask(server, name="Carl"):
    client = server.browser()
    answer = await client.post("/api/access-requests", json={"name": name})
    assert answer.status_code == 201
    return client, answer.json()


async def check(client, asked):
    body = {"request": asked["request"]}
    return await client.post("/api/access-requests/check", json=body)


@pytest.mark.parametrize("role", ["user", "operator"])
async def test_a_visitor_is_let_in_with_a_code(server, role):
    client, asked = await ask(server)
    assert re.fullmatch(r"[0-9A-Z]{4}-[0-9A-Z]{4}", asked["code"])
    waiting = await check(client, asked)
    assert (waiting.status_code, waiting.json()) == (202, {"waiting": True})
    await sign_in(server, operator := server.browser())
    [request] = (await operator.get("/api/pairings")).json()["requests"]
    assert (request["source"]["platform"], request["source"]["user_name"]) == ("web", "Carl")
    body = {"code": asked["code"].lower(), "role": role}
    assert (await operator.post("/api/pairings", json=body)).status_code == 200
    me = (await check(client, asked)).json()
    assert (me["name"], me["roles"], me["platform"]) == ("Carl", [role], "web")
    assert (await client.get("/api/me")).json() == me
    url = "/api/conversations/name:x/messages"
    assert (await client.post(url, json={"text": "hello"})).status_code == 200


async def test_a_code_lets_in_one_browser_once(server):
    client, asked = await ask(server)
    await sign_in(server, operator := server.browser())
    await operator.post("/api/pairings", json={"code": asked["code"]})
    assert (await check(client, asked)).status_code == 200
    assert (await check(server.browser(), asked)).status_code == 404
    again = await operator.post("/api/pairings", json={"code": asked["code"]})
    assert again.status_code == 404


async def test_nobody_gets_in_with_the_code_or_the_id(server):
    _, asked = await ask(server)
    user = people.user_id_of(asked["request"])
    await sign_in(server, operator := server.browser())
    await operator.post("/api/pairings", json={"code": asked["code"]})
    for request in (asked["code"], user, user.removeprefix("usr_"), "x"):
        assert (await check(server.browser(), {"request": request})).status_code == 404


async def test_an_operator_removes_a_person(server):
    client, asked = await ask(server)
    await sign_in(server, operator := server.browser())
    await operator.post("/api/pairings", json={"code": asked["code"]})
    me = (await check(client, asked)).json()
    removed = await operator.delete(f"/api/principals/web/{me['user']}")
    assert removed.json() == {"removed": 1}
    assert (await client.get("/api/me")).status_code == 401


async def test_requests_for_access_are_bounded(server):
    """A few at a time, whoever asks: the rest is told to come back later."""
    statuses = [
        (await server.browser().post("/api/access-requests", json={"name": "x"})).status_code
        for _ in range(8)
    ]
    assert statuses == [201] * 3 + [429] * 5
    assert len(await server.runtime.api.pairings()) == 3


async def test_asking_whether_one_is_let_in_is_limited(server):
    client, asked = await ask(server)
    statuses = [(await check(client, asked)).status_code for _ in range(people.CHECKING.burst + 5)]
    assert 429 in statuses
    answers = [
        await check(client, {"request": f"wrong {number}"}) for number in range(FAILED.burst + 1)
    ]
    assert (answers[0].status_code, answers[-1].status_code) == (404, 429)


@pytest.mark.parametrize("name", ["", "   ", "x" * 61, 3])
async def test_the_name_of_a_visitor_is_short_and_not_empty(server, name):
    answer = await server.browser().post("/api/access-requests", json={"name": name})
    assert answer.status_code == 400


async def test_the_name_of_a_visitor_is_shown_without_control_characters(server):
    await ask(server, "Ann\x1b[31m\n\u202eoperator")
    [request] = await server.runtime.api.pairings()
    assert request.source.user_name == "Ann?[31m??operator"


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:150.0) Gecko/20100101 Firefox/150.0",
         "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/156.0 Safari/537.36 Edg/156.0",
         "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 20_0 like Mac OS X) Version/20.0 Safari/604.1",
         "Safari on iOS"),
        ("Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/156.0 Mobile Safari/537.36",
         "Chrome on Android"),
        ("curl/8.0", None), ("", None),
    ],
)  # fmt: skip
def test_browsers_have_names(user_agent, name):
    assert people.browser_of(user_agent) == name


async def test_a_cookie_opens_no_websocket(server):
    await sign_in(server, client := server.browser())
    secret = cookie_of(server, client)
    key = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers = {**key, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": server.url}
    answer = await with_cookie(server, secret, **headers).get("/api/rpc")
    assert answer.status_code in {401, 403}
