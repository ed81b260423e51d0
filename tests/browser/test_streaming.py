"""A running turn: its answer grows, and it can be stopped, steered and queued behind."""

from __future__ import annotations

import re

import msgspec
import pytest
from playwright.sync_api import expect

from hermes.events import ReasoningDelta, ToolFinished, ToolStarted
from hermes.messages import ToolCall
from tests.support.page import answer, ask, composer, messages, say


def running(page):
    """The answer that is being written."""
    return page.get_by_label("Hermes is answering")


def test_an_answer_grows_while_it_is_written(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    turn.emit("The first ", "words")
    expect(running(page)).to_contain_text("The first words")
    turn.emit(" and **more**.\n\nA second")
    expect(running(page).locator("strong")).to_have_text("more")
    first = running(page).locator("p", has_text="The first words")
    mark = "(node) => { node.marked = true; }"
    first.evaluate(mark)
    turn.emit(" paragraph\n\n```python\nprint(1)\n```\n")
    expect(running(page).locator("pre")).to_contain_text("print(1)")
    assert first.evaluate("(node) => node.marked")  # what is finished is not built again
    text = "The first words and **more**.\n\nA second paragraph\n\n```python\nprint(1)\n```\n"
    turn.finish(text)
    expect(running(page)).to_be_hidden()
    expect(messages(page)).to_have_count(2)
    expect(messages(page).last.locator("strong")).to_have_text("more")


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_those_who_ask_for_reduced_motion(sign_in, web, motion):
    page = sign_in(web, reduced_motion=motion)
    say(page, "hold on")
    turn = web.next_turn()
    expect(running(page).locator(".dots")).to_be_visible()
    moves = page.evaluate("document.getAnimations().some((each) => each.playState === 'running')")
    assert moves == (motion == "no-preference")
    turn.finish("done")


def test_reasoning_can_be_unfolded(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    turn.emit(ReasoningDelta("I have to think about herons."))
    fold = running(page).get_by_text("Reasoning", exact=True)
    expect(running(page).get_by_text("I have to think about herons.")).to_be_hidden()
    fold.click()
    expect(running(page).get_by_text("I have to think about herons.")).to_be_visible()
    turn.emit(ReasoningDelta(" And ravens."))
    expect(running(page).get_by_text("I have to think about herons. And ravens.")).to_be_visible()
    turn.finish("done")
    expect(answer(page, "done")).to_be_visible()


def test_tools_are_cards_with_arguments_and_results(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    turn.emit(ToolStarted(ToolCall("call_1", "get_weather", '{"city": "Rome"}')))
    card = running(page).locator("details.tool")
    expect(card).to_contain_text("get_weather")
    card.locator("summary").click()
    expect(card.get_by_text('"city": "Rome"')).to_be_visible()
    turn.emit(ToolFinished("call_1", "sunny, 24 degrees"))
    expect(card.get_by_text("sunny, 24 degrees")).to_be_visible()
    turn.emit(ToolStarted(ToolCall("call_2", "get_weather", '{"city": "Oslo"}')))
    turn.emit(ToolFinished("call_2", "no such city", failed=True))
    expect(running(page).locator('details.tool[data-state="failed"]')).to_have_count(1)
    turn.finish("It is sunny.")
    expect(answer(page, "It is sunny.")).to_be_visible()
    page.reload()
    expect(answer(page, "It is sunny.")).to_be_visible()
    states = page.locator("details.tool").evaluate_all("all => all.map(each => each.dataset.state)")
    assert states == ["done", "failed"]
    expect(page.locator("details.tool .tool-time").first).to_have_text(re.compile(r"\d"))


def test_arguments_and_results_are_shown_as_they_are(page, web):
    """Numbers keep their digits and their form, and repeated names stay."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    result = '{"id":12345678901234567890,"a":1.0,"a":[1e3,{"b":"x: {y}, \\""}],"c":[]}'
    say(page, "hold on")
    turn = web.next_turn()
    turn.emit(ToolStarted(ToolCall("c1", "look", '{"id":98765432109876543210}')))
    turn.emit(ToolFinished("c1", result))
    card = running(page).locator("details.tool")
    expect(card.locator(".tool-brief")).to_have_text('{"id":98765432109876543210}')
    card.locator("summary").click()
    shown = card.get_by_label("Result", exact=True)
    expect(shown).to_contain_text('"id": 12345678901234567890,')
    assert shown.inner_text() == (
        '{\n  "id": 12345678901234567890,\n  "a": 1.0,\n  "a": [\n    1e3,\n    {\n'
        '      "b": "x: {y}, \\""\n    }\n  ],\n  "c": []\n}'
    )
    card.get_by_role("button", name="Copy result").click()
    page.wait_for_function(
        "it => navigator.clipboard.readText().then(got => got === it)", arg=result
    )
    turn.finish("done")


def test_stop(page, web):
    say(page, "hold on")
    web.next_turn().emit("Once upon a")
    expect(running(page)).to_contain_text("Once upon a")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(running(page)).to_be_hidden()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    expect(composer(page)).to_be_focused()
    ask(page, "and now?")


def test_a_message_waits_in_the_queue_and_can_be_withdrawn(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    expect(running(page)).to_be_visible()
    queue = page.get_by_role("region", name="Queue")
    say(page, "then this")
    expect(queue.locator("li")).to_have_count(1)
    say(page, "and that")
    expect(queue.locator("li")).to_have_count(2)
    queue.locator("li").first.get_by_role("button", name="Withdraw message").click()
    expect(queue.locator("li")).to_have_count(1)
    queue.get_by_role("button", name="Edit queued message").click()
    expect(queue).to_be_hidden()
    expect(composer(page)).to_have_value("and that")
    composer(page).press("Enter")
    expect(queue.locator("li")).to_have_count(1)
    turn.finish("first answer")
    expect(answer(page, "echo: and that")).to_be_visible()
    expect(queue).to_be_hidden()
    expect(page.get_by_text("then this")).to_have_count(0)


def test_steer(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    expect(running(page)).to_be_visible()
    composer(page).fill("shorter, please")
    page.get_by_role("button", name="Steer").click()
    expect(page.get_by_text("shorter, please")).to_be_visible()  # this agent takes it afterwards
    turn.finish("short")
    expect(answer(page, "short")).to_be_visible()
    expect(answer(page, "echo: shorter, please")).to_be_visible()


def test_a_running_answer_takes_what_is_steered(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    turn.emit("Once upon a time")
    expect(running(page)).to_contain_text("Once upon a time")
    composer(page).fill("about herons")
    composer(page).press("Control+Enter")
    while not (hints := web.call(turn.turn.steered)):
        page.wait_for_timeout(20)
    turn.finish(f"told {hints[0].content}")
    expect(answer(page, "told about herons")).to_be_visible()
    expect(messages(page).filter(has_text=re.compile("^about herons"))).to_have_count(1)
    expect(page.get_by_role("region", name="Queue")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()


def test_two_tabs_are_in_step(page, web, sign_in):
    ask(page, "hello")
    other = sign_in(web, page.url.partition("#")[2], context=page.context)
    expect(answer(other, "echo: hello")).to_be_visible()
    say(other, "hold on")
    turn = web.next_turn()
    turn.emit("seen in both")
    for each in (page, other):
        expect(running(each)).to_contain_text("seen in both")
    turn.finish("an end")
    for each in (page, other):
        expect(answer(each, "an end")).to_be_visible()
        expect(messages(each)).to_have_count(4)
    page.get_by_role("button", name="Options of this conversation").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Two tabs")
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(other.get_by_role("heading", name="Two tabs")).to_be_visible()


def test_two_devices_are_in_step(page, web, sign_in):
    ask(page, "hello")
    phone = sign_in(web, page.url.partition("#")[2], viewport={"width": 360, "height": 740})
    expect(answer(phone, "echo: hello")).to_be_visible()
    ask(phone, "from the phone")
    expect(answer(page, "echo: from the phone")).to_be_visible()
    expect(messages(page)).to_have_count(4)


def test_ten_tabs_at_once(page, web, sign_in):
    ask(page, "hello")
    route = page.url.partition("#")[2]
    tabs = [page, *(sign_in(web, route, context=page.context) for _ in range(9))]
    for each in tabs:
        expect(answer(each, "echo: hello")).to_be_visible()
    ask(tabs[-1], "from the last tab")
    for each in tabs:
        expect(answer(each, "echo: from the last tab")).to_be_visible()
    tabs[0].close()  # it reads the streams for all
    ask(tabs[-1], "and on")
    for each in tabs[1:]:
        expect(answer(each, "echo: and on")).to_be_visible()
        expect(messages(each)).to_have_count(6)


def test_the_agent_of_the_messages_sees_what_was_sent(page, web):
    """Line breaks are kept, and nothing of Markdown or HTML is changed."""
    text = "hold <b>on</b>\n\n  * two  \n"
    composer(page).fill(text)
    composer(page).press("Enter")
    turn = web.next_turn()
    assert turn.turn.text == text.strip()
    turn.finish(msgspec.json.encode({"ok": True}).decode())
    expect(messages(page)).to_have_count(2)
