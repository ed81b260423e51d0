"""The chat in a small window: everything can be reached, however much waits or is attached."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from hermes.events import ToolStarted
from hermes.messages import ToolCall
from tests.support.chat_page import composer, say

NAME = "a file with a name that is much too long for a phone number {}.txt"
INSIDE = """(each) => {
  const box = each.getBoundingClientRect();
  return box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
}"""


@pytest.fixture
def phone(sign_in, web):
    """The chat on a phone whose keyboard takes a part of the screen."""
    return sign_in(web, viewport={"width": 360, "height": 520}, has_touch=True, is_mobile=True)


def attach(page, number):
    """Attach files with the button, and wait until they were uploaded."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files(
        [
            {"name": NAME.format(each), "mimeType": "text/plain", "buffer": b"text"}
            for each in range(number)
        ]
    )
    expect(page.get_by_role("list", name="Attached files").get_by_role("listitem")).to_have_count(
        number
    )
    expect(page.get_by_role("progressbar")).to_have_count(0)


def inside(page, *names):
    """Whether buttons are inside the window as a whole."""
    found = [page.get_by_role("button", name=name, exact=True) for name in names]
    return all(each.evaluate(INSIDE) for each in found)


def test_many_files_and_queued_messages_leave_room(phone, web):
    say(phone, "hold on")
    turn = web.next_turn()
    attach(phone, 8)
    composer(phone).fill("A message of several lines. " * 20)
    assert inside(phone, "Stop", "Steer", "Queue", "Attach files")
    composer(phone).press("Enter")
    queue = phone.get_by_role("region", name="Queue").get_by_role("listitem")
    for number in range(8):
        composer(phone).fill(f"queued message {number}")
        composer(phone).press("Enter")
    expect(queue).to_have_count(9)
    queue.first.get_by_role("button", name="Edit queued message").click()
    expect(queue).to_have_count(8)
    files = phone.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(files).to_have_count(8)
    assert inside(phone, "Stop", "Steer", "Queue", "Attach files")
    last = queue.last.get_by_role("button", name="Withdraw message")
    last.click()
    expect(queue).to_have_count(7)
    files.last.get_by_role("button", name="Remove").click()
    expect(files).to_have_count(7)
    phone.get_by_role("button", name="Queue", exact=True).click()
    expect(queue.last).to_contain_text("A message of several lines.")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    turn.finish("done")
    expect(phone.get_by_role("link", name=NAME.format(0))).to_be_visible()


def test_a_tool_with_a_long_name_fits(phone, web):
    say(phone, "hold on")
    turn = web.next_turn()
    turn.emit(ToolStarted(ToolCall("c1", "search_the_whole_library_of_everything_there_is", "{}")))
    card = phone.locator("details.tool")
    assert card.locator("summary > .icon").evaluate(INSIDE)
    assert card.evaluate("each => each.scrollWidth <= each.clientWidth")
    card.locator("summary").click()
    expect(card.get_by_text("It is still running.")).to_be_visible()
    turn.finish("done")


def test_the_list_can_be_used_when_the_phone_is_turned(phone):
    say(phone, "hello")
    phone.set_viewport_size({"width": 900, "height": 360})
    phone.get_by_role("searchbox", name="Search conversations").click()
    expect(phone.get_by_role("searchbox", name="Search conversations")).to_be_focused()
    phone.get_by_role("button", name="New conversation", exact=True).first.click()
    expect(phone.get_by_role("heading", name="What shall we talk about?")).to_be_visible()
