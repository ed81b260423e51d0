"""The chat: messages, the list of conversations, and what can be done with them."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.support.page import answer, ask, composer, messages, say


def listed(page):
    """The conversations in the list."""
    return page.get_by_role("navigation", name="Conversations").locator("li.conversation")


def choose(page, entry):
    """Choose an entry of the menu of the open conversation."""
    page.get_by_role("button", name="Options of this conversation").click()
    page.get_by_role("menuitem", name=entry).click()


def test_a_message_is_answered_and_listed(page):
    ask(page, "hello")
    expect(messages(page)).to_have_count(2)
    expect(listed(page)).to_have_count(1)
    expect(listed(page)).to_contain_text("hello")
    expect(listed(page).locator("time")).to_have_attribute("title", re.compile(r" at \d"))
    expect(page.get_by_role("heading", name="Today", exact=True)).to_be_visible()
    expect(composer(page)).to_be_focused()
    expect(composer(page)).to_have_value("")
    page.reload()
    expect(answer(page, "echo: hello")).to_have_count(1)
    expect(messages(page)).to_have_count(2)


def test_new_conversations_and_the_way_between_them(page):
    ask(page, "first")
    page.get_by_role("button", name="New conversation", exact=True).first.click()
    expect(messages(page)).to_have_count(0)
    ask(page, "second")
    expect(listed(page)).to_have_count(2)
    listed(page).filter(has_text="first").get_by_role("link").click()
    expect(answer(page, "echo: first")).to_be_visible()
    page.go_back()
    expect(answer(page, "echo: second")).to_be_visible()


def test_rename(page):
    ask(page, "hello")
    choose(page, "Rename")
    page.get_by_role("textbox", name="Title").fill("A <b>bold</b> plan")
    page.get_by_role("button", name="Rename", exact=True).last.click()
    expect(page.get_by_role("heading", name="A <b>bold</b> plan")).to_be_visible()
    expect(listed(page)).to_contain_text("A <b>bold</b> plan")


def test_search_finds_titles_and_texts(page):
    ask(page, "where do herons sleep")
    page.get_by_role("button", name="New conversation", exact=True).first.click()
    ask(page, "who feeds the ravens")
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("herons")
    hits = page.locator("ul.hits li")
    expect(hits).to_have_count(2)  # the question and its echo
    expect(hits.first.locator("mark")).to_have_text("herons")
    expect(hits.first.locator(".title")).to_have_text("where do herons sleep")
    hits.first.get_by_role("link").click()
    expect(answer(page, "echo: where do herons sleep")).to_be_visible()
    search.fill("")
    expect(listed(page)).to_have_count(2)


def test_delete_asks_first(page):
    ask(page, "hello")
    choose(page, "Delete")
    page.get_by_role("button", name="Cancel").click()
    expect(listed(page)).to_have_count(1)
    choose(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(listed(page)).to_have_count(0)
    expect(messages(page)).to_have_count(0)


def test_export_as_markdown_and_json(page):
    ask(page, "hello")
    with page.expect_download() as download:
        choose(page, "Download as Markdown")
    assert "echo: hello" in download.value.path().read_text()
    with page.expect_download() as download:
        choose(page, "Download as JSON")
    assert "echo: hello" in json.dumps(json.loads(download.value.path().read_text()))


def test_archive_and_back(page):
    ask(page, "hello")
    choose(page, "Archive")
    expect(listed(page)).to_have_count(0)
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(listed(page)).to_have_count(1)
    choose(page, "Take out of the archive")
    expect(listed(page)).to_have_count(0)
    page.get_by_role("button", name="Leave the archive").click()
    expect(listed(page)).to_have_count(1)


def test_undo_takes_the_last_message_back(page):
    ask(page, "one")
    ask(page, "two")
    messages(page).last.hover()
    messages(page).last.get_by_role("button", name="Take back").click()
    expect(answer(page, "echo: two")).to_have_count(0)
    expect(messages(page)).to_have_count(2)


def test_only_the_latest_message_can_be_answered_again_and_taken_back(page):
    for text in ("one", "two", "three"):
        ask(page, text)
    page.mouse.move(0, 0)
    for name in ("Answer again", "Take back"):
        expect(page.get_by_role("button", name=name)).to_have_count(1)
    for each in messages(page).all()[:-1]:
        each.hover()
        expect(each.get_by_role("button", name="Branch from here")).to_be_visible()
        expect(each.get_by_role("button", name="Answer again")).to_be_hidden()


def test_retry_answers_again(page, web):
    say(page, "hold on")
    web.next_turn().finish("a first answer")
    expect(answer(page, "a first answer")).to_be_visible()
    messages(page).last.hover()
    messages(page).last.get_by_role("button", name="Answer again").click()
    web.next_turn().finish("a second answer")
    expect(answer(page, "a second answer")).to_be_visible()
    expect(answer(page, "a first answer")).to_have_count(0)
    expect(messages(page)).to_have_count(2)


def test_branch_from_any_message(page):
    ask(page, "one")
    ask(page, "two")
    first = answer(page, "echo: one")
    first.hover()
    first.get_by_role("button", name="Branch from here").click()
    expect(listed(page)).to_have_count(2)
    expect(messages(page)).to_have_count(2)
    ask(page, "another way")
    page.get_by_role("button", name="Branches").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def test_an_edited_message_begins_a_branch(page):
    ask(page, "one")
    ask(page, "tow")
    message = page.locator("article.user").filter(has_text="tow")
    message.hover()
    message.get_by_role("button", name="Edit message").click()
    expect(composer(page)).to_have_value("tow")
    say(page, "two")
    expect(answer(page, "echo: two")).to_be_visible()
    expect(answer(page, "echo: one")).to_be_visible()
    expect(answer(page, "echo: tow")).to_have_count(0)
    expect(messages(page)).to_have_count(4)
    page.get_by_role("button", name="Branches").click()
    page.get_by_role("dialog").get_by_role("button", name="Go on with this").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(answer(page, "echo: tow")).to_be_visible()
    expect(answer(page, "echo: two")).to_have_count(0)


def test_a_draft_survives_a_reload(page):
    ask(page, "hello")
    composer(page).fill("half a thou")
    page.reload()
    expect(composer(page)).to_have_value("half a thou")
    page.get_by_role("button", name="New conversation", exact=True).first.click()
    expect(composer(page)).to_have_value("")


def test_copy(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "hello")
    messages(page).last.hover()
    messages(page).last.get_by_role("button", name="Copy message").click()
    page.wait_for_function("navigator.clipboard.readText().then((it) => it === 'echo: hello')")


def test_commands_are_offered_and_answered(page):
    ask(page, "hello")
    composer(page).press_sequentially("/he")
    expect(page.get_by_role("option")).not_to_have_count(0)
    composer(page).press("Tab")
    expect(composer(page)).to_have_value("/help ")
    composer(page).press("Enter")
    expect(page.locator(".note").filter(has_text="/help")).to_be_visible()


def test_an_error_of_the_agent_is_shown(page, web):
    say(page, "hold on")
    web.next_turn().finish(ValueError("no such bird"))
    expect(page.locator(".note.error")).to_be_visible()


def test_the_colours_follow_the_system_and_the_choice(page):
    page.emulate_media(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) != dark
    switch = page.get_by_role("button", name=re.compile("^Colours"))
    switch.click()
    switch.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(background) == dark
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(background) == dark
