"""A thousand conversations in the live view: few rows are built, and updates disturb nothing."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.live_page import ask, live_server, open_live
from tests.support.live_view import hold_conversations

ROWS = ".actors .actor"
COUNT_CHANGES = """() => {
  window.rows = 0;
  new MutationObserver((records) => {
    for (const each of records) window.rows += each.addedNodes.length;
  }).observe(document.querySelector(".actors"), { childList: true });
}"""

NEXT_FRAME = "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"


def test_a_thousand_conversations_are_watched_without_losing_the_place(new_context, path):
    with live_server(path) as live:
        live.call(hold_conversations, live.server.runtime, 1000)
        page = open_live(new_context, live, "/actors")
        expect(page.get_by_text("1,000 of 1,000")).to_be_visible()
        table = page.get_by_role("table", name="Conversations in memory")
        expect(table).to_have_attribute("aria-rowcount", "1001")
        page.get_by_role("columnheader", name="Conversation").get_by_role("button").click()
        expect(page.locator(ROWS).first).to_contain_text("live:0")
        assert page.locator(ROWS).count() < 60
        table.evaluate("element => { element.scrollTop = 12000; }")
        middle = page.locator(ROWS).filter(has_text="live:38").first
        expect(middle).to_be_visible()
        key = middle.get_attribute("data-key")
        link = page.get_by_role("link", name=key, exact=True)
        link.focus()
        page.evaluate(NEXT_FRAME)  # the table may have scrolled
        top = table.evaluate("element => element.scrollTop")
        page.evaluate(COUNT_CHANGES)
        row = page.locator(f'[data-key="{key}"]')
        size = row.get_by_role("cell").nth(5)
        before = size.inner_text()
        ask(live, key, "again")
        expect(size).not_to_have_text(before)
        expect(link).to_be_focused()
        assert table.evaluate("element => element.scrollTop") == top
        assert page.evaluate("window.rows") == 0
        assert page.locator(ROWS).count() < 60
        table.evaluate("element => { element.scrollTop = 0; }")
        expect(page.locator(ROWS).first).to_contain_text("live:0")
        expect(link).to_be_focused()
        new_context.close()
