"""Every view in a small and a large window, light and dark: accessible, and not too wide."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from hermes import TurnResult
from hermes.events import ReasoningDelta, ToolFinished, ToolStarted
from hermes.messages import Message, Source, ToolCall, Usage
from tests.support.accessibility import look
from tests.support.page import answer, ask, composer, messages, say

PLAN = """Here is a plan for **two days** in Tromsø.

## Friday

1. The *Arctic Cathedral*, best in the evening.
2. The cable car to [Storsteinen](https://example.com/storsteinen).

| when | where | cost |
|:-----|:------|-----:|
| 10:00 | Polaria | 175 |
| 14:00 | Library | 0 |

```python
def nights(arrival: date, departure: date) -> int:
    \"\"\"Return the number of nights.\"\"\"
    return (departure - arrival).days  # both are dates
```

> Take warm clothes: it is **−8 °C** and windy.

- [x] flights
- [ ] hotel
"""


@pytest.fixture
def story(page, web):
    """A conversation with everything, in which an answer is being written."""
    title = "A weekend in Tromsø"
    for each in ("Translate a letter", "Why is the sky blue?", "A recipe for two"):
        ask(page, each)
        page.get_by_role("button", name="New conversation", exact=True).first.click()
        expect(messages(page)).to_have_count(0)
    say(page, "hold on: plan a weekend in Tromsø for two people")
    turn = web.next_turn()
    call = ToolCall("call_1", "get_weather", '{"city": "Tromsø", "days": 2}')
    turn.emit(ReasoningDelta("They want a short trip."), ToolStarted(call))
    turn.emit(ToolFinished("call_1", '{"temperature": -8, "wind": "strong"}'))
    turn.finish(
        TurnResult(text=PLAN, usage=[Usage(input_tokens=4200, output_tokens=655, cost=0.012)])
    )
    expect(messages(page)).to_have_count(3)  # with the one that calls the tool
    page.get_by_role("button", name="Options of this conversation").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill(title)
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    return page


def test_a_conversation(story, web):
    assert look(story, "chat") == []
    say(story, "hold on: and where do we eat?")
    turn = web.next_turn()
    turn.emit(ReasoningDelta("They like fish."))
    turn.emit(ToolStarted(ToolCall("call_2", "find_restaurants", '{"kind": "fish"}')))
    turn.emit("Two places are **open**:\n\n* Fiskekompaniet\n* Mathallen\n\nBoth are near the")
    expect(story.get_by_label("Hermes is answering")).to_contain_text("near the")
    say(story, "Near the harbour, please")
    composer(story).fill(
        "And is there a sauna that is open late? We would like to walk there from the hotel."
    )
    expect(story.get_by_role("region", name="Queue")).to_be_visible()
    assert look(story, "running") == []
    turn.finish("Done.")


def test_dialogs_and_menus(story):
    composer(story).blur()
    story.keyboard.press("?")
    expect(story.get_by_role("dialog")).to_be_visible()
    assert look(story, "shortcuts") == []
    for name in ("Usage", "Branches"):
        story.keyboard.press("Escape")
        expect(story.get_by_role("dialog")).to_be_hidden()
        story.get_by_role("button", name=name).or_(story.get_by_title(name)).first.click()
        expect(story.get_by_role("dialog")).to_be_visible()
        assert look(story, name.lower()) == []
    story.keyboard.press("Escape")
    expect(story.get_by_role("dialog")).to_be_hidden()
    story.get_by_role("button", name="Options of this conversation").click()
    assert look(story, "menu", sizes=[(1440, 900)]) == []


def test_an_empty_chat(page):
    expect(composer(page)).to_be_visible()
    assert look(page, "empty") == []


def test_errors_and_lost_connections(page, web, problems):
    problems.expect("ERR_INTERNET_DISCONNECTED", "ERR_NETWORK", "404")
    say(page, "hold on")
    web.next_turn().finish(ValueError("no such bird"))
    expect(page.locator(".note.error")).to_be_visible()
    page.context.set_offline(True)
    say(page, "are you there?")
    expect(page.get_by_text("Not sent yet")).to_be_visible()
    expect(page.locator(".connection")).to_have_attribute("data-state", "offline")
    assert look(page, "offline") == []
    page.context.set_offline(False)
    expect(answer(page, "echo: are you there?")).to_be_visible()
    page.goto(f"{web.url}/#/turns/none/7")
    expect(page.get_by_role("alert")).to_be_visible()
    assert look(page, "no-turn") == []


def test_the_list_on_a_phone(story):
    story.set_viewport_size({"width": 360, "height": 740})
    story.get_by_role("button", name="Conversations", exact=True).click()
    expect(story.get_by_role("searchbox")).to_be_focused()
    assert look(story, "list", sizes=[(360, 740)]) == []


def test_settings_of_an_operator(sign_in, web):
    page = sign_in(web, "/settings", role="operator", name="op")
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    expect(page.get_by_text("this browser")).to_be_visible()
    assert look(page, "settings") == []


def test_the_sign_in(new_context, web, problems):
    problems.expect("401")
    page = new_context().new_page()
    page.goto(web.url)
    expect(page.get_by_role("heading", name="Sign in to Hermes")).to_be_visible()
    assert look(page, "sign-in") == []
    page.get_by_role("textbox").fill("Ann")
    page.get_by_role("button", name="Ask for access").click()
    expect(page.locator(".code")).to_be_visible()
    assert look(page, "asking") == []


def test_the_live_view(sign_in, web):
    source = Source("web", chat_id="one")
    rows = [Message("user", "hello"), Message("assistant", "hello!")]
    key = "agent:main:web:dm:ann:one"
    web.call(web.server.runtime.api.add_messages, key, rows, source)
    page = sign_in(web, "/", role="operator", name="op")
    say(page, "hold on")
    turn = web.next_turn()
    page.get_by_role("link", name="Live view").click()
    tabs = page.locator("main nav a:visible")
    expect(tabs.first).to_be_visible()
    for number in range(tabs.count()):
        tabs.nth(number).click()
        expect(tabs.nth(number)).to_have_attribute("aria-current", "page")
        assert look(page, f"live-{number}") == []
    turn.finish()
