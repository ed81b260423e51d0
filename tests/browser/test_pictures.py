"""The stories of the README's pictures, which docs/page_pictures.py takes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import look
from tests.support.page_stories import EARLIER, add_earlier, keep_busy, play, story_server


@pytest.fixture
def story(path, new_context):
    with story_server(path) as web:
        yield web
        new_context.close()


def test_a_conversation_with_tools_and_an_approval(story, sign_in, path):
    add_earlier(story, path)
    page = sign_in(story, role="operator")
    play(story, page)
    listed = page.get_by_role("navigation", name="Conversations")
    expect(listed.get_by_role("heading", name="Yesterday")).to_be_visible()
    assert listed.get_by_role("link").count() == 1 + len(EARLIER)
    assert look(page, "story") == []


def test_a_busy_runtime(story, sign_in):
    page = sign_in(story, "/live", role="operator")
    keep_busy(story, rounds=2, count=30)
    states = page.locator(".dot-map .state")
    expect(states).to_have_text(["4 running", "0 waiting", "27 idle"])
    dots = page.locator(".dot-map path")
    assert [dots.nth(n).get_attribute("d").count("M") for n in range(3)] == [4, 0, 27]
    assert look(page, "busy") == []
    states.first.click()
    expect(page.get_by_label("State")).to_have_value("running")
