"""The list of conversations, and what can be done with one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.support.chat_page import act, choose, composer, listed, message, say


def test_conversations_are_listed_named_searched_and_opened(page):
    say(page, "a walrus swims")
    expect(page).to_have_url(re.compile("#/c/conv_"))
    expect(listed(page, "a walrus swims")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("heading", name="Today")).to_be_visible()
    choose(page, "Rename")
    page.get_by_role("textbox", name="Title").fill("The sea")
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(page.get_by_role("heading", name="The sea", level=1)).to_be_visible()
    expect(listed(page, "The sea")).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    say(page, "a camel walks")
    expect(listed(page, "a camel walks")).to_be_visible()
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("sea")
    expect(listed(page, "a camel walks")).to_have_count(0)
    expect(listed(page, "The sea").first).to_be_visible()
    search.fill("walrus")  # it is in the messages only
    expect(page.get_by_role("heading", name="In messages")).to_be_visible()
    listed(page, "walrus swims").first.click()
    expect(message(page, "Hermes", "echo: a walrus swims")).to_be_visible()
    search.fill("")
    expect(listed(page, "a camel walks")).to_be_visible()
    page.reload()
    expect(message(page, "Hermes", "echo: a walrus swims")).to_be_visible()


def test_a_conversation_is_archived_exported_and_deleted(page):
    say(page, "keep this")
    with page.expect_download() as download:
        choose(page, "Download as Markdown")
    assert "echo: keep this" in Path(download.value.path()).read_text()
    with page.expect_download() as download:
        choose(page, "Download as JSON")
    rows = json.loads(Path(download.value.path()).read_text())["messages"]
    assert [row["text"] for row in rows] == ["keep this", "echo: keep this"]
    choose(page, "Archive")
    expect(listed(page, "keep this")).to_have_count(0)
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(listed(page, "keep this")).to_be_visible()
    choose(page, "Take out of the archive")
    page.get_by_role("button", name="Leave the archive").click()
    expect(listed(page, "keep this")).to_be_visible()
    choose(page, "Delete")
    question = page.get_by_role("dialog", name="Delete this conversation?")
    question.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Options of this conversation")).to_be_focused()
    choose(page, "Delete")
    question.get_by_role("button", name="Delete").click()
    expect(listed(page, "keep this")).to_have_count(0)
    expect(page.get_by_role("heading", name="What shall we talk about?")).to_be_visible()


def test_messages_are_edited_in_branches_between_which_one_can_go(page):
    say(page, "first version")
    act(page, message(page, "You", "first version"), "Edit message")
    expect(composer(page)).to_have_value("first version")
    say(page, "second version")
    expect(message(page, "You", "first version")).to_have_count(0)
    page.get_by_role("button", name="Branches").click()
    branches = page.get_by_role("dialog", name="Branches and earlier sessions")
    expect(branches.get_by_role("listitem")).to_have_count(2)
    branches.get_by_role("button", name="Go on with this").click()
    expect(message(page, "Hermes", "echo: first version")).to_be_visible()
    expect(branches).to_have_count(0)


def test_a_conversation_is_branched_from_any_message(page):
    for text in ("one", "two", "three"):
        say(page, text)
    original = page.url
    act(page, message(page, "Hermes", "echo: two"), "Branch from here")
    expect(page.get_by_role("heading", name=re.compile("branch"), level=1)).to_be_visible()
    expect(message(page, "You", "three")).to_have_count(0)
    expect(message(page, "Hermes", "echo: two")).to_be_visible()
    say(page, "four")
    page.goto(original)
    expect(message(page, "Hermes", "echo: three")).to_be_visible()
    expect(message(page, "You", "four")).to_have_count(0)


def test_the_last_exchange_is_answered_again_and_taken_back(page, web):
    say(page, "hold one")
    web.next_turn().finish("the first answer")
    expect(message(page, "Hermes", "the first answer")).to_be_visible()
    act(page, message(page, "Hermes", "the first answer"), "Answer again")
    web.next_turn().finish("the second answer")
    expect(message(page, "Hermes", "the second answer")).to_be_visible()
    expect(message(page, "Hermes", "the first answer")).to_have_count(0)
    act(page, message(page, "Hermes", "the second answer"), "Take back")
    expect(message(page, "Hermes", "the second answer")).to_have_count(0)
    expect(composer(page)).to_have_value("hold one")
