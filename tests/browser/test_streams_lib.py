"""Streams in tabs of a real browser: one connection, and nothing lost or repeated."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from hermes.adapters.http import HttpConfig
from tests.support.http import new_token
from tests.support.page_modules import blank_page, read, serve_blank, subscriber
from tests.support.web import web_server

LOST = r"ERR_|Failed to load resource"
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined });"
NO_CHANNEL = "delete globalThis.BroadcastChannel;"


def events(name):
    return f"/api/conversations/name:{name}/events"


@pytest.fixture
def context(new_context, web):
    return signed_in(new_context, web)


def signed_in(new_context, web, *scripts):
    context = new_context(extra_http_headers={"Authorization": f"Bearer {web.server.secret}"})
    for script in scripts:
        context.add_init_script(script)
    serve_blank(context)
    return context


def say(context, web, *texts, name="a"):
    """Send messages, one after the other, and wait for their replies."""
    for text in texts:
        url = f"{web.url}/api/conversations/name:{name}/messages"
        response = context.request.post(url, data={"text": text}, timeout=60_000)
        assert response.ok, response.text()


def shows(tab, name, value):
    """Wait until an attribute of the page is this one, or matches it."""
    expect(tab.locator("body")).to_have_attribute(f"data-{name}", value)


def has(tab, *texts):
    """Wait until a tab knows exactly these texts."""
    shows(tab, "texts", ",".join(texts))


def is_live(tab):
    shows(tab, "state", "live")


def has_open(web, tab, count):
    """Wait until the server has so many open requests and streams."""
    secret = web.call(new_token, web.server.runtime, "prometheus", roles=("metrics",))
    client = web.call(lambda: web.server.http(secret))
    for _ in range(600):
        text = web.call(client.get, "/metrics").text
        found = re.search(r"^hermes_http_streams (\S+)", text, re.MULTILINE)[1]
        if float(found) == count:
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"{found} requests are open")


def test_ten_tabs_of_a_conversation_share_one_connection(context, web):
    say(context, web, "one")
    tabs = [subscriber(context, web, events("a")) for _ in range(10)]
    for tab in tabs:
        is_live(tab)
    say(context, web, "two", "three")
    for tab in tabs:
        has(tab, "one", "two", "three")
        shows(tab, "resets", "1")
    has_open(web, tabs[0], 3)  # the connection, its stream, and the request for this number


def test_ten_tabs_can_show_ten_conversations(context, web):
    tabs = [subscriber(context, web, events(number)) for number in range(10)]
    for tab in tabs:
        is_live(tab)
    for number, tab in enumerate(tabs):
        say(context, web, f"to {number}", name=number)
        has(tab, f"to {number}")
    for number, tab in enumerate(tabs):
        has(tab, f"to {number}")


def test_another_tab_reads_on_when_the_reader_is_closed(context, web):
    tabs = [subscriber(context, web, events("a")) for _ in range(3)]
    said = []
    while tabs:
        for tab in tabs:
            is_live(tab)
        said.append(f"with {len(tabs)}")
        say(context, web, said[-1])
        for tab in tabs:
            has(tab, *said)
        tabs.pop(0).close()
        if tabs:  # before anybody has noticed
            said.append(f"without {len(tabs)}")
            say(context, web, said[-1])
            for tab in tabs:
                has(tab, *said)
                shows(tab, "resets", "1")


def test_a_tab_that_reads_no_more_leaves_the_others_alone(context, web):
    first, second = (subscriber(context, web, events("a")) for _ in range(2))
    is_live(first)
    is_live(second)
    first.evaluate("window.unsubscribe()")
    say(context, web, "one")
    has(second, "one")
    has(first)


def test_what_was_read_once_is_not_new_in_a_later_attempt(context, web):
    """A tab that takes an old frame for a new one asks the server again, without an end."""
    tab, other = subscriber(context, web, events("a")), blank_page(context, web)
    is_live(tab)
    other.evaluate("""() => {
      window.posted = [];
      window.channel = new BroadcastChannel(`hermes ${location.origin}/`);
      window.channel.onmessage = ({ data }) => data.frame && window.posted.push(data);
    }""")
    say(context, web, "one")
    other.wait_for_function("posted.some(({ frame }) => frame.kind === 'turn_ended')")
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    other.evaluate("for (const each of posted) channel.postMessage(each)")
    say(context, web, "two")
    has(tab, "one", "two")
    is_live(tab)
    assert asked == []


def test_the_browser_catches_up_after_a_restart_of_the_server(path, new_context, problems):
    problems.expect(LOST)
    with web_server(path) as web:
        context = signed_in(new_context, web)
        tabs = [subscriber(context, web, events("a")) for _ in range(2)]
        say(context, web, "one")
        for tab in tabs:
            is_live(tab)
            has(tab, "one")
        port, secret = int(web.url.rpartition(":")[2]), web.server.secret
    for tab in tabs:
        shows(tab, "states", re.compile("Reconnecting in"))
    with web_server(path, config=HttpConfig(port=port), secret=secret) as web:
        say(context, web, "two")
        for tab in tabs:
            has(tab, "one", "two")
            is_live(tab)


def test_a_tab_that_knows_more_than_the_reader_waits_for_it(path, new_context, problems):
    """It does not ask the server again and again."""
    problems.expect(LOST)
    with web_server(path) as web:
        context = signed_in(new_context, web)
        first = subscriber(context, web, events("a"))
        is_live(first)
        port, secret = int(web.url.rpartition(":")[2]), web.server.secret
    shows(first, "states", re.compile("Reconnecting in"))
    tries = []
    context.route("**/api/streams", lambda route: (tries.append(1), route.abort()))
    with web_server(path, config=HttpConfig(port=port), secret=secret) as web:
        second = blank_page(context, web)
        asked = []
        second.on("request", lambda request: asked.append(request.url))
        read(second, events("a"))
        shows(second, "resets", "1")
        before = len(tries)
        while len(tries) < before + 3:
            second.wait_for_timeout(20)
        assert len(asked) < 10
        context.unroute("**/api/streams")
        say(context, web, "one")
        for tab in (first, second):
            has(tab, "one")
            is_live(tab)
        assert len(asked) < 10
        new_context.close()


def test_offline_and_online_again(context, web, problems):
    problems.expect(LOST)
    tabs = [subscriber(context, web, events("a")) for _ in range(2)]
    for tab in tabs:
        is_live(tab)
    context.set_offline(True)
    for tab in tabs:
        shows(tab, "state", "offline")
    web.call(post, web, "while away")
    context.set_offline(False)
    for tab in tabs:
        has(tab, "while away")
        is_live(tab)
        shows(tab, "resets", "1")
        shows(tab, "states", re.compile("Offline.*,Catching up…"))


async def post(web, text):
    client = web.server.http()
    response = await client.post("/api/conversations/name:a/messages", json={"text": text})
    assert response.status_code == 200


@pytest.mark.parametrize("missing", [NO_LOCKS, NO_CHANNEL])
def test_a_browser_that_cannot_share_has_a_connection_for_each_tab(new_context, web, missing):
    context = signed_in(new_context, web, missing)
    tabs = [subscriber(context, web, events("a")) for _ in range(2)]
    for tab in tabs:
        is_live(tab)
    say(context, web, "one")
    for tab in tabs:
        has(tab, "one")
    context.close()


def test_a_reader_that_says_nothing_is_replaced(context, web):
    frozen = blank_page(context, web)
    frozen.evaluate("""() => new Promise((held) => {
      navigator.locks.request(`hermes ${location.origin}/`, () => {
        held();
        return new Promise(() => {});
      }).catch(() => {});
    })""")
    tab = subscriber(context, web, events("a"), clock=True)
    shows(tab, "resets", "1")
    tab.clock.fast_forward(60_000)
    is_live(tab)
    say(context, web, "one")
    has(tab, "one")


def test_what_is_not_there_is_said(context, web, problems):
    problems.expect("404")
    tab = subscriber(context, web, "/api/conversations/agent:main:telegram:dm:1/events")
    shows(tab, "state", "refused")
    shows(tab, "states", re.compile("Not available$"))
