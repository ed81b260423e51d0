"""A recorded turn in the page, and the same turn run again."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from itertools import pairwise
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from hermes.agents import tool
from hermes.messages import ToolCall
from hermes.testing import ModelAnswer
from tests.support.accessibility import look as look_at
from tests.support.page import ask, say
from tests.support.web import model_server

ASKED = """() => performance.getEntriesByType("resource")
  .filter(({ name }) => /messages.\\d+$/.test(name)).map(({ startTime }) => startTime)"""


@tool
def look(where: str) -> str:
    """Look around."""
    return f"the sea in the {where}"


def answer(request):
    """A model that looks around once in each turn."""
    last = [each for each in request.json["messages"] if each["role"] != "system"][-1]
    if last["role"] == "tool":
        return f"{request.json['model']} sees blue water"
    where = "south" if "south" in last["content"] else "north"
    return ModelAnswer("let me see", calls=[ToolCall("c1", "look", f'{{"where": "{where}"}}')])


@pytest.fixture
def looking(path, new_context):
    """A server whose agent looks around."""
    with model_server(path, answer, system="Be brief.", tools=[look]) as web:
        yield web
        new_context.close()


@pytest.fixture
def turn(looking, sign_in):
    """The page of a recorded turn."""
    page = sign_in(looking)
    say(page, "what do you see?")
    expect(page.get_by_text("m sees blue water", exact=True)).to_be_visible()
    [found] = looking.call(looking.server.runtime.api.conversations)
    [recorded] = looking.call(looking.server.runtime.api.past_turns, found.session_key)
    page.goto(f"{looking.url}/#/turns/{quote(found.session_key, safe='')}/{recorded.turn_id}")
    expect(page.get_by_role("heading", name="Past turn")).to_be_focused()
    return page


def test_a_turn_shows_what_was_given_and_answered(turn):
    first = turn.get_by_role("region", name="Model call 1")
    expect(first).to_contain_text("These are the bytes that were sent")
    first.get_by_text("System prompt").click()
    expect(first.get_by_text("Be brief.")).to_be_visible()
    first.get_by_text("Tools (1)").click()
    expect(first.get_by_role("heading", name="look")).to_be_visible()
    first.get_by_text("Messages (1)").click()
    expect(first.get_by_text("what do you see?")).to_be_visible()
    first.get_by_text("Request body").click()
    expect(first.locator(".turn-hash")).to_have_text(re.compile("[0-9a-f]{64}"))
    line = turn.locator(".turn-line")
    expect(line.get_by_role("listitem")).to_have_count(3)
    expect(line).to_contain_text("look")
    expect(turn.locator(".turn-messages").last).to_contain_text("the sea in the north")


@pytest.mark.parametrize("width", [1440, 360])
def test_a_turn_runs_again_beside_the_original(turn, width):
    turn.set_viewport_size({"width": width, "height": 800})
    turn.get_by_role("button", name="Run again").click()
    turn.get_by_label("Model", exact=True).fill("large")
    turn.get_by_label("Question").fill("what do you hear?")
    turn.get_by_label("Instructions for this turn").fill("Speak like a gull.")
    turn.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(turn.get_by_role("heading", name="Original and branch")).to_be_visible()
    expect(turn.get_by_role("region", name="Original").locator("del").first).to_have_text("see?")
    branch = turn.get_by_role("region", name="Branch", exact=True)
    branch.get_by_text("Injected").first.click()
    expect(branch.get_by_text("Speak like a gull.")).to_be_visible()
    expect(branch.locator("ins").first).to_have_text("hear?")
    expect(branch).to_contain_text("large sees blue water")
    wide = turn.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide
    boxes = [each.bounding_box() for each in turn.locator(".turn-side").all()]
    assert (boxes[0]["x"] == boxes[1]["x"]) == (width == 360)


def test_turns_and_their_comparison_are_accessible_and_fit(turn):
    for each in ("System prompt", "Tools (1)", "Messages (1)", "Request body"):
        turn.get_by_role("region", name="Model call 1").get_by_text(each).click()
    expect(turn.locator(".turn-hash")).to_be_visible()
    assert look_at(turn, "turn") == []
    turn.get_by_role("button", name="Run again").click()
    assert look_at(turn, "again") == []
    turn.get_by_label("Question").fill("what do you hear?")
    turn.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(turn.get_by_role("heading", name="Original and branch")).to_be_visible()
    assert look_at(turn, "compared") == []


def test_a_turn_whose_bytes_have_changed_says_so(turn, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE contents SET content = 'Be long.' WHERE content = 'Be brief.'")
    turn.reload()
    first = turn.get_by_role("region", name="Model call 1")
    expect(first).to_contain_text("This is not exactly what was sent: the hash differs.")


def test_the_bytes_of_other_agents_are_unknown(page):
    ask(page, "hello")
    page.goto(f"{page.url.split('#')[0]}#/turns/{page.url.rpartition('/')[2]}/1")
    expect(page.get_by_text("what it has sent to a model is unknown")).to_be_visible()
    expect(page.locator(".turn-messages")).to_contain_text("echo: hello")


def test_a_call_without_a_recorded_result_needs_an_approval(turn):
    turn.get_by_role("button", name="Run again").click()
    turn.get_by_label("Question").fill("look to the south")
    turn.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(turn.get_by_role("region", name="Branch", exact=True)).to_contain_text("was not run")
    turn.get_by_role("link", name="Open the chat").click()
    card = turn.get_by_role("region", name="Approve look")
    expect(card).to_contain_text('"where": "south"')


def test_a_turn_that_runs_again_is_asked_for_at_most_once_a_second(page, web):
    ask(page, "hello")
    page.goto(f"{page.url.split('#')[0]}#/turns/{page.url.rpartition('/')[2]}/1")
    page.get_by_role("button", name="Run again").click()
    page.get_by_label("Question").fill("hold on")
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    held = web.next_turn()
    page.wait_for_function(f"() => ({ASKED})().length > 3")
    held.finish("done")
    at = page.evaluate(ASKED)
    assert all(after - before >= 1000 for before, after in pairwise(at)), at
    expect(page.get_by_role("heading", name="Original and branch")).to_be_visible()


def test_a_turn_that_is_not_recorded(page):
    page.goto(f"{page.url.split('#')[0]}#/turns/name%3Anone/7")
    expect(page.get_by_role("alert")).to_contain_text("This turn is not recorded")


@pytest.fixture(autouse=True)
def missing_turns(problems):
    """The browser reports the answer 404 on its console."""
    problems.expect("404")
