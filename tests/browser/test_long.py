"""A conversation with 10,000 messages: few of them are in the page, and it scrolls smoothly.

How long tasks held the page is written to build/browser/long-tasks.json.
"""

from __future__ import annotations

import json

from playwright.sync_api import expect

from hermes.messages import Message, Source
from tests.support.browser import FOLDER
from tests.support.page import answer, ask, messages

MESSAGES = 10_000
AT_ONCE = 500
PAGES = 8
LONGEST = 400
"""Milliseconds; on a machine with nothing else to do there is no task of more than 50."""
OBSERVE = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) longTasks.push(each.duration);
  }).observe({ type: "longtask" });
}"""
IS_EARLIER = "before => Number(document.querySelector('[data-id]').dataset.id) < before"


def row(number):
    """A message of an exchange, some with a list and some with code."""
    if number % 2 == 0:
        return Message("user", f"question {number} about *herons*")
    more = "\n\n```python\nprint(1)\n```" if number % 5 == 0 else "\n\n* one\n* two"
    return Message(
        "assistant", f"answer {number} with **words** and a [link](https://a.example){more}"
    )


def first_id(page):
    """Return the id of the first message in the page."""
    return int(page.locator("[data-id]").first.get_attribute("data-id"))


def test_ten_thousand_messages_can_be_scrolled(page, web):
    ask(page, "hello")
    expect(answer(page, "echo: hello")).to_be_visible()
    address = page.url
    link = page.locator("li.conversation a").get_attribute("href")
    key = link.removeprefix("#/c/").replace("%3A", ":")
    source = Source("web", chat_id=key.rpartition(":")[2])
    page.goto("about:blank")  # it does not watch them arrive
    for first in range(0, MESSAGES - 2, AT_ONCE):
        rows = [row(number) for number in range(first, min(first + AT_ONCE, MESSAGES - 2))]
        web.call(web.server.runtime.api.add_messages, key, rows, source)
    page.goto(address)
    expect(page.get_by_text(f"answer {MESSAGES - 3} ")).to_be_visible()
    page.evaluate(OBSERVE)
    page.get_by_role("log", name="Messages").hover()
    for _ in range(PAGES):
        before = first_id(page)
        page.mouse.wheel(0, -100_000)
        page.wait_for_function(IS_EARLIER, arg=before)
    assert messages(page).count() < 500
    page.keyboard.press("Escape")
    page.keyboard.press("G")
    expect(page.get_by_text(f"answer {MESSAGES - 3} ")).to_be_visible()
    ask(page, "still quick?")
    expect(answer(page, "echo: still quick?")).to_be_visible()
    tasks = sorted(page.evaluate("longTasks"), reverse=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "long-tasks.json").write_text(json.dumps(tasks))
    assert max(tasks, default=0) < LONGEST
