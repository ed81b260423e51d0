"""The live view of operators in a real browser: each part of it, and where its numbers lead."""

from __future__ import annotations

import re
import threading
from functools import partial
from urllib.parse import quote

import pytest
import trio
from playwright.sync_api import expect

from hermes import Inbound
from tests.support.browser import axe_script
from tests.support.compression import FULL, ScriptedCompressor, talk
from tests.support.http_models import server_with
from tests.support.live_page import (
    CHAT,
    LOST,
    REFUSED,
    TALK,
    ask,
    live_server,
    open_live,
    talk_long,
)
from tests.support.web import WebServer, running

TABS = ("overview", "actors", "lineage", "cache", "delivery", "store", "limits")
KEY = "agent:main:one"


@pytest.fixture
def live(path, new_context):
    with live_server(path) as server:
        yield server
        new_context.close()  # a page that is still loading would miss the server


def hold(web, key=KEY, event="1"):
    """Start a turn that the test ends."""
    web.call(web.server.runtime.submit, Inbound(key, event, "hold"))
    return web.next_turn()


def stat(page, label):
    return page.locator(".stat").filter(has_text=label)


def test_numbers_change_as_it_happens_and_open_what_they_count(new_context, live):
    page = open_live(new_context, live)
    running = stat(page, "Running turns")
    expect(running.locator(".stat-value")).to_have_text("0")
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
    held = hold(live)
    expect(running.locator(".stat-value")).to_have_text("1")
    running.click()
    expect(page).to_have_url(re.compile("#/live/actors/running$"))
    row = page.get_by_role("row").filter(has_text=KEY)
    expect(row.get_by_text("running")).to_be_visible()
    live.call(live.server.runtime.submit, Inbound(KEY, "2", "next"))
    expect(row.get_by_role("cell").nth(2)).to_have_text("1")
    held.finish()
    expect(row).to_have_count(0)
    page.get_by_label("State").select_option("idle")
    expect(row).to_contain_text("cached · cold")
    row.get_by_role("link", name=KEY, exact=True).click()
    expect(page).to_have_url(re.compile(f"#/c/{re.escape(quote(KEY, safe=''))}$"))


def test_the_conversations_are_filtered_and_sorted(new_context, live):
    for key in ("b:1", "a:1", "a:2"):
        ask(live, key, "hello")
    page = open_live(new_context, live, "/actors")
    keys = page.locator(".actors .actor > :first-child")
    expect(keys).to_have_count(3)
    header = page.get_by_role("columnheader", name="Conversation")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(keys).to_have_text(["a:1", "a:2", "b:1"])
    header.get_by_role("button").press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(keys).to_have_text(["b:1", "a:2", "a:1"])
    page.get_by_label("Filter by key").fill("A:")
    expect(keys).to_have_text(["a:2", "a:1"])
    expect(page.get_by_text("2 of 3")).to_be_visible()
    page.get_by_role("link", name="Lineage of a:2").click()
    expect(page).to_have_url(re.compile(r"#/live/lineage/a%3A2$"))


def test_the_lineage_shows_what_each_summary_replaced(new_context, live):
    talk_long(live)
    page = open_live(new_context, live, f"/lineage/{quote(TALK, safe='')}")
    sessions = page.locator(".sessions button")
    expect(sessions).to_have_count(3)
    expect(sessions.nth(0)).to_contain_text("new · 18 messages")
    expect(sessions.nth(1)).to_contain_text("compression")
    expect(sessions.nth(2)).to_contain_text("branch")
    expect(sessions.nth(2)).to_contain_text("tip")
    expect(sessions.nth(2)).to_have_attribute("aria-current", "true")
    detail = page.get_by_role("region", name="The session")
    expect(detail).to_contain_text("Another way")
    page.locator(".map g").nth(1).click()
    expect(detail.get_by_text(re.compile(r"The summary replaced \d+ messages"))).to_be_visible()
    expect(detail.get_by_text("what was said before")).to_be_visible()
    expect(detail.get_by_role("list", name="Replaced messages")).to_contain_text("question 000")
    sessions.nth(0).focus()
    page.keyboard.press("Enter")
    expect(detail).to_contain_text("compression")
    expect(sessions.nth(0)).to_have_attribute("aria-current", "true")
    before = sessions.nth(2).inner_text()
    ask(live, TALK, "more")
    expect(sessions.nth(2)).not_to_have_text(before, use_inner_text=True)
    expect(sessions.nth(0)).to_be_focused()


def test_a_conversation_is_chosen_for_its_lineage(new_context, live):
    ask(live, KEY, "hello")
    page = open_live(new_context, live, "/lineage")
    page.get_by_label("Session key").fill(KEY)
    page.get_by_role("button", name="Show the lineage").click()
    expect(page.locator(".sessions button")).to_have_count(1)
    page.go_back()
    page.get_by_role("table").get_by_role("link", name=KEY).click()
    expect(page.locator(".sessions button")).to_have_count(1)


def test_the_cache_shows_each_call_and_the_first_differing_byte(new_context, live):
    ask(live, KEY, "one")
    page = open_live(new_context, live, "/cache")
    expect(page.get_by_role("cell", name="there was none in memory")).to_be_visible()
    page.get_by_role("link", name=KEY).click()
    expect(page.locator(".call")).to_have_count(1)
    expect(page.locator(".chart i")).to_have_count(1)
    expect(page.locator(".call")).to_contain_text("90%")
    live.agent.day = "Tuesday"
    ask(live, KEY, "two")
    expect(page.locator(".call")).to_have_count(2)
    built = page.locator(".built").first
    expect(built).to_contain_text("The agent was built: signature")
    expect(built).to_contain_text("first differing byte: 66")
    expect(built.locator("mark")).to_have_text(["M", "T"])
    expect(page.locator(".built").nth(1)).to_contain_text("cold")


def test_recorded_prompts_are_compared(new_context, path):
    with running(partial(server_with, path, ["one", "two"])) as ((server, _), token):
        web = WebServer(server, None, token)
        conversation = server.runtime.conversation(KEY)
        web.call(conversation.ask, "hello")
        web.call(conversation.configure, model="n")
        web.call(conversation.ask, "again")
        page = open_live(new_context, web, f"/cache/{quote(KEY, safe='')}")
        built = page.locator(".built").first
        expect(built).to_contain_text("prompt first differing byte")
        expect(built.locator("mark")).to_have_text(["m", "n"])
        page.get_by_role("link", name="Lineage").last.click()
        expect(page.locator(".sessions button")).to_have_count(1)


@pytest.mark.parametrize(("errors", "column"), [(REFUSED, "Retries"), (LOST, "Unknown outcome")])
def test_retries_and_unknown_outcomes_open_their_rows(new_context, path, errors, column):
    with live_server(path, errors=errors) as live:
        ask(live, KEY, "hello", source=CHAT)
        page = open_live(new_context, live, "/delivery")
        lanes = page.get_by_role("region", name="Chats with undelivered replies")
        at = ["Retries", "Unknown outcome"].index(column) + 3
        number = lanes.locator("tbody tr").first.locator("td").nth(at).get_by_role("link")
        expect(number).to_have_text("1")
        number.click()
        rows = page.get_by_role("region", name="Replies to")
        expect(rows.locator("tbody tr")).to_have_count(1)
        expect(rows).to_contain_text("echo: hello")
        expect(rows).to_contain_text("unknown" if errors is LOST else "known")
        page.get_by_role("link", name="Overview").click()
        page.get_by_role("link", name="1 retry").click()
        expect(lanes).to_be_visible()
        new_context.close()


def test_the_store_shows_its_commits_and_sizes(new_context, live):
    ask(live, KEY, "hello")
    page = open_live(new_context, live, "/store")
    expect(stat(page, "Commit, 99th percentile")).to_contain_text("ms")
    expect(page.get_by_label("Commits in each of the last 60 seconds")).to_be_visible()
    commits = stat(page, "Flushes to disk").locator(".stat-value")
    before = commits.inner_text()
    held = hold(live)
    expect(commits).not_to_have_text(before)
    expect(page.get_by_role("region", name="Duration of commits")).to_contain_text("%")
    page.get_by_role("row", name="Messages without an answer").get_by_role("link").click()
    expect(page).to_have_url(re.compile("#/live/actors/busy$"))
    held.finish()


def test_the_limits_show_costs_and_paused_conversations(new_context, live):
    ask(live, KEY, "hello")
    page = open_live(new_context, live, "/limits")
    expect(page.get_by_role("region", name="Budget of the day")).to_contain_text("$0.0020")
    expect(page.get_by_role("region", name="Sessions that cost most")).to_contain_text(KEY)
    expect(page.get_by_text("No conversation is being compressed.")).to_be_visible()
    expect(page.get_by_text("No conversation is paused.")).to_be_visible()


def test_a_running_compression_is_shown_with_its_lease(new_context, path):
    begun, go = threading.Event(), threading.Event()

    async def wait(request):
        begun.set()
        await trio.to_thread.run_sync(go.wait)

    with live_server(path, compressor=ScriptedCompressor(wait)) as live:
        page = open_live(new_context, live, "/limits")
        leases = page.get_by_role("region", name="Running compressions")
        expect(page.get_by_text("No conversation is being compressed.")).to_be_visible()
        live.call(partial(talk, live.server.runtime, FULL, key=KEY))
        compress = live.server.runtime.conversation(KEY).compress
        compressing = threading.Thread(target=live.call, args=[compress])
        compressing.start()
        assert begun.wait(30)
        expect(leases).to_contain_text(KEY)
        expect(leases).to_contain_text(re.compile(r"\d:\d\d"))
        go.set()
        compressing.join()
        expect(page.get_by_text("No conversation is being compressed.")).to_be_visible()
        new_context.close()


def test_updates_come_over_the_stream_alone(new_context, live):
    page = open_live(new_context, live)
    count = stat(page, "Conversations in memory").locator(".stat-value")
    expect(count).to_have_text("0")
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    for number in range(1, 4):
        ask(live, f"k:{number}", "hello")
        expect(count).to_have_text(f"{number}")
    details = [each for each in requests if "/api/live/" in each and "events" not in each]
    assert details == []


def test_others_have_no_link_to_it(new_context, live):
    context = new_context(extra_http_headers={"Authorization": f"Bearer {live.secret}"})
    page = context.new_page()
    page.goto(live.url)
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    expect(page.get_by_role("link", name="Live view")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_is_accessible_and_fits_a_small_screen(new_context, live, scheme):
    talk_long(live)
    live.agent.day = "Tuesday"
    ask(live, TALK, "hello")
    key = quote(TALK, safe="")
    routes = [*[f"/{tab}" for tab in TABS], f"/lineage/{key}", f"/cache/{key}", "/delivery/*"]
    viewport = {"width": 360, "height": 740}
    page = open_live(new_context, live, color_scheme=scheme, viewport=viewport)
    page.evaluate(axe_script())
    for route in routes:
        page.evaluate("route => { location.hash = `/live${route}`; }", route)
        tab = page.get_by_role("navigation", name="Live view").locator("[aria-current]")
        expect(tab).to_have_attribute("href", f"#/live/{route.split('/')[1]}")
        expect(page.locator(".live-panel > *").first).to_be_visible()
        assert page.evaluate("document.querySelector('#view').scrollWidth") <= 360, route
        found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
        serious = [
            (each["id"], [node["html"] for node in each["nodes"]])
            for each in found["violations"]
            if each["impact"] in {"serious", "critical"}
        ]
        assert serious == [], route
