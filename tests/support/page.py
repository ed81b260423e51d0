"""What tests of the web page do again and again."""

from __future__ import annotations

from playwright.sync_api import expect


def composer(page):
    """The field in which a message is written."""
    return page.get_by_role("combobox", name="Message")


def say(page, text):
    """Write a message, and send it with Enter."""
    composer(page).fill(text)
    composer(page).press("Enter")


def messages(page):
    """The stored messages and the running answer, in order."""
    return page.locator("article.message:visible")


def answer(page, text):
    """The message of the agent with exactly this text."""
    return page.locator("article.assistant:visible").filter(has=page.get_by_text(text, exact=True))


def ask(page, text):
    """Send a message to an agent that echoes, and wait for the stored answer."""
    say(page, text)
    expect(answer(page, f"echo: {text}")).to_have_count(1)
    expect(page.get_by_label("Hermes is answering")).to_be_hidden()
