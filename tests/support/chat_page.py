"""The chat as a user sees it: the elements that tests look for, by role and name."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def composer(page):
    """The field in which a message is written."""
    return page.get_by_role("combobox", name="Message", exact=True)


def say(page, text, answer=None):
    """Send a message, and wait for its answer."""
    composer(page).fill(text)
    composer(page).press("Enter")
    expect(message(page, "You", text).last).to_be_visible()
    if answer is None and not text.startswith("hold"):
        answer = f"echo: {text}"
    if answer is not None:
        expect(message(page, "Hermes, ", answer).last).to_be_visible()


def message(page, who, text):
    """The messages of "You" that contain a text; "Hermes, " are its stored answers."""
    return page.get_by_role("article", name=re.compile(f"^{who}")).filter(has_text=text)


def act(page, row, name):
    """Press a button below a message."""
    row.hover()
    row.get_by_role("button", name=name).click()


def listed(page, title):
    """The link of a conversation in the list."""
    return page.get_by_role("navigation", name="Conversations").get_by_role("link", name=title)


def choose(page, name):
    """Choose something from the menu of the open conversation."""
    page.get_by_role("button", name="Options of this conversation").click()
    page.get_by_role("menuitem", name=name).click()
