"""The nodes of a cluster in the live view: what each of them has, and a hand-over as it happens."""

from __future__ import annotations

import re
from functools import partial

import trio
from playwright.sync_api import expect

from hermes import open_runtime
from hermes.testing import MemoryAdapter
from tests.support.browser import axe_script
from tests.support.cluster_nodes import cluster_of, until, with_lease
from tests.support.live_page import ask, live_server, open_live
from tests.support.web import running

KEYS = [f"agent:main:{number}" for number in range(12)]


async def echo(turn):
    return f"echo: {turn.text}"


def owners(web):
    """Return which node serves each conversation."""

    async def find():
        view = await web.server.runtime.api.cluster_view()
        return {claim.session_key: claim.node for claim in view.claims}

    return web.call(find)


async def know(runtime, count):
    await until(lambda: len(cluster_of(runtime).nodes) == count)


def test_nodes_and_a_hand_over_are_shown_as_they_happen(new_context, postgres_url):
    url = with_lease(postgres_url)
    other = partial(open_runtime, url, agent=echo, adapters=[MemoryAdapter()])
    with live_server(url) as web:
        here = web.call(web.server.runtime.api.node_id)
        with running(other) as (second, token):
            trio.from_thread.run(know, second, 2, trio_token=token)
            web.call(know, web.server.runtime, 2)
            for key in KEYS:
                ask(web, key, "hello")
            found = owners(web)
            assert set(found) == set(KEYS)
            theirs = next(key for key, node in found.items() if node != here)
            page = open_live(new_context, web, "/nodes")
            nodes = page.get_by_role("region", name="Nodes")
            expect(nodes.locator("tbody tr")).to_have_count(2)
            mine = nodes.get_by_role("row", name=re.compile(f"^{here}: .* this page"))
            expect(mine).to_contain_text(re.compile(r"0:0\d"))
            table = page.get_by_role("region", name="Conversations, those that moved last first")
            expect(table.locator("tbody tr")).to_have_count(len(KEYS))
            row = table.get_by_role("row", name=re.compile(f"^{re.escape(theirs)} "))
            expect(row).to_contain_text("–")
            page.evaluate(axe_script())
            assert page.evaluate("axe.run()")["violations"] == []
        expect(nodes.locator("tbody tr")).to_have_count(1)  # the other one has left
        expect(row).to_have_count(0)
        ask(web, theirs, "and now?")
        expect(row).to_contain_text(f"from node {found[theirs]}, just now")
        mine.get_by_role("link").first.click()
        expect(page).to_have_url(re.compile(f"#/live/nodes/{here}$"))
        expect(page.get_by_role("heading", name="Conversations of")).to_be_visible()
        new_context.close()


def test_a_single_process_has_no_nodes(new_context, path):
    with live_server(path) as web:
        page = open_live(new_context, web)
        tabs = page.get_by_role("navigation", name="Live view")
        expect(tabs.get_by_role("link", name="Overview")).to_be_visible()
        expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
        expect(tabs.get_by_role("link", name="Nodes")).to_be_hidden()
        new_context.close()
