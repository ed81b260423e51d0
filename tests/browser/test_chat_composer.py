"""Writing a message: drafts, files, commands, the keyboard, and a connection that is lost."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.chat_page import composer, listed, message, say
from tests.support.files import png

PASTE = """([field, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
  field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
}"""
DROP = """(pane) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["some text"], "dropped.txt", { type: "text/plain" }));
  pane.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


def test_the_draft_of_each_conversation_survives_a_reload(page):
    say(page, "one")
    composer(page).fill("a draft of the first")
    page.get_by_role("button", name="New conversation", exact=True).first.click()
    expect(composer(page)).to_have_value("")
    composer(page).fill("a draft of a new one")
    page.reload()
    expect(composer(page)).to_have_value("a draft of a new one")
    listed(page, "one").click()
    expect(composer(page)).to_have_value("a draft of the first")
    composer(page).press("Enter")
    expect(message(page, "Hermes, ", "echo: a draft of the first")).to_be_visible()
    page.reload()
    expect(message(page, "Hermes, ", "echo: a draft of the first")).to_be_visible()
    expect(composer(page)).to_have_value("")


def test_files_are_attached_by_button_paste_and_drop(page):
    files = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([{"name": "a <b>.txt", "mimeType": "text/plain", "buffer": b"hello"}])
    expect(files).to_have_count(1)
    field = composer(page).element_handle()
    page.evaluate(PASTE, [field, list(png())])
    page.get_by_role("region", name="Conversation").evaluate(DROP)
    expect(files).to_have_count(3)
    expect(page.get_by_role("progressbar")).to_have_count(0)
    page.get_by_role("button", name="Remove a <b>.txt").click()
    expect(files).to_have_count(2)
    expect(composer(page)).to_be_focused()
    composer(page).fill("two files")
    composer(page).press("Enter")
    sent = message(page, "You", "two files")
    expect(sent.get_by_role("link", name="dropped.txt")).to_be_visible()
    expect(message(page, "Hermes, ", "echo: ")).to_be_visible()
    image = page.get_by_role("button", name="Enlarge pasted.png")
    expect(image).to_be_visible()
    expect(image.get_by_role("img")).to_have_js_property("complete", value=True)
    assert image.get_by_role("img").evaluate("image => image.naturalWidth") > 0
    with page.expect_download() as download:
        message(page, "You", "two files").get_by_role("link", name="dropped.txt").click()
    assert download.value.suggested_filename == "dropped.txt"
    image.click()
    expect(page.get_by_role("dialog", name="pasted.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(image).to_be_focused()


def test_the_chat_is_used_with_the_keyboard_alone(page):
    expect(composer(page)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(message(page, "Hermes, ", "echo: one")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(shortcuts).to_contain_text("New conversation")
    page.keyboard.press("Escape")
    expect(shortcuts).to_have_count(0)
    page.keyboard.press("k")
    expect(message(page, "Hermes, ", "echo: one")).to_be_focused()
    page.keyboard.press("k")
    expect(message(page, "You", "one")).to_be_focused()
    page.keyboard.press("e")
    expect(composer(page)).to_have_value("one\ntwo")
    page.keyboard.press("Escape")
    expect(composer(page)).to_have_value("")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search conversations")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(listed(page, re.compile("one"))).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox", name="Search conversations")).not_to_be_focused()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="What shall we talk about?")).to_be_visible()
    expect(composer(page)).to_be_focused()


def test_a_message_that_is_sent_without_a_connection_arrives_once(page, web, problems):
    say(page, "hello")
    problems.expect("ERR_INTERNET_DISCONNECTED", "ERR_NETWORK")
    page.context.set_offline(True)
    composer(page).fill("sent offline")
    composer(page).press("Enter")
    expect(page.get_by_text("Not sent yet: the server cannot be reached.")).to_be_visible()
    page.context.set_offline(False)
    expect(message(page, "Hermes, ", "echo: sent offline")).to_be_visible()
    expect(message(page, "You", "sent offline")).to_have_count(1)
    page.reload()
    expect(message(page, "Hermes, ", "echo: sent offline")).to_have_count(1)
    expect(message(page, "You", "sent offline")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chat_fits_a_phone_and_its_colours_are_chosen(web, sign_in, scheme):
    phone = {"width": 360, "height": 740}
    page = sign_in(web, viewport=phone, color_scheme=scheme, reduced_motion="reduce")
    say(page, "wide " + "x" * 300)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.get_by_role("log").evaluate("each => each.scrollWidth <= each.clientWidth")
    page.get_by_role("button", name="Conversations").click()
    expect(listed(page, "wide")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(listed(page, "wide")).not_to_be_in_viewport()
    expect(page.get_by_role("button", name="Conversations")).to_be_focused()
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    page.get_by_role("button", name="Colours: system").click()
    page.get_by_role("button", name="Colours: light").click()
    page.get_by_role("button", name="Colours: dark").wait_for()
    page.reload()
    page.get_by_role("button", name="Colours: dark").wait_for()
    assert (page.evaluate(colour) == before) == (scheme == "dark")
