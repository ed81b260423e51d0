"""A turn while it runs: what stays of it, its cost, approvals, and the queue."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from hermes.events import ApprovalAsked, ReasoningDelta
from hermes.messages import TurnResult, Usage
from tests.support.chat_page import composer, message, say


def test_an_answer_arrives_in_pieces_and_stays_when_the_turn_ends(page, web):
    say(page, "hold")
    turn = web.next_turn()
    answer = page.get_by_role("article", name="Hermes is answering")
    expect(answer).to_be_visible()
    turn.emit(ReasoningDelta("let me think"), "# A heading\n\nSome **bold** text\n\n")
    expect(answer.get_by_role("heading", name="A heading")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    answer.get_by_role("heading", name="A heading").evaluate("node => { window.kept = node; }")
    text = "# A heading\n\nSome **bold** text\n\n```python\nprint(1)\n```\n"
    turn.emit("```python\nprint(1)\n```\n")
    usage = Usage(model="m", input_tokens=1200, output_tokens=340, cost=0.0123)
    turn.finish(TurnResult(text=text, usage=(usage,)))
    done = message(page, "Hermes, ", "A heading")
    expect(done.locator("pre")).to_contain_text("print(1)")
    assert page.evaluate("window.kept.isConnected"), "a finished block was built again"
    done.get_by_text("Reasoning").click()
    expect(done.get_by_text("let me think")).to_be_visible()
    expect(done.get_by_role("button", name="1.2K in · 340 out · $0.012")).to_be_visible()
    page.get_by_role("button", name="$0.012", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("cell", name="$0.012")).to_be_visible()
    page.keyboard.press("Escape")
    page.reload()
    expect(message(page, "Hermes, ", "A heading").locator("pre")).to_contain_text("print(1)")


def test_queued_messages_are_withdrawn_and_edited(page, web):
    say(page, "hold the first")
    turn = web.next_turn()
    queue = page.get_by_role("region", name="Queue")
    for text in ("second", "third"):
        composer(page).fill(text)
        page.get_by_role("button", name="Queue", exact=True).click()
        expect(queue.get_by_role("listitem").filter(has_text=text)).to_be_visible()
    third = queue.get_by_role("listitem").filter(has_text="third")
    third.get_by_role("button", name="Withdraw message").click()
    expect(third).to_have_count(0)
    second = queue.get_by_role("listitem").filter(has_text="second")
    second.get_by_role("button", name="Edit queued message").click()
    expect(composer(page)).to_have_value("second")
    expect(queue).to_have_count(0)
    page.get_by_role("button", name="Queue", exact=True).click()
    expect(queue).to_contain_text("second")
    composer(page).fill("a hint")
    page.get_by_role("button", name="Steer").click()  # this agent takes none, so it waits
    expect(queue).to_contain_text("a hint")
    turn.finish("the first answer")
    expect(message(page, "Hermes, ", "a hint")).to_be_visible()
    expect(queue).to_have_count(0)
    expect(page.get_by_text("third")).to_have_count(0)


async def ask_first(turn):
    """Ask for an approval, and say what was decided."""
    if turn.decided_calls:
        return f"decided {turn.decided_calls}"
    approval = await turn.records.ask_approval(
        turn.session_key, "order", '{"bird": "heron"}', delivery="host"
    )
    turn.emit(ApprovalAsked(approval))
    return "asked"


def test_a_tool_call_is_approved_with_a_button(serve, sign_in):
    page = sign_in(serve(ask_first))
    say(page, "order a heron", "asked")
    card = page.get_by_role("region", name="Approve order")
    expect(card).to_contain_text('"bird": "heron"')
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"expires in \d+:\d\d"))
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_role("region", name="Approve order")).to_be_visible()
    card.get_by_role("button", name="Approve", exact=True).click()
    expect(message(page, "Hermes, ", "decided")).to_be_visible()
    expect(page.get_by_text("You approved order.")).to_be_visible()
    for each in (page, other):
        expect(each.get_by_role("region", name="Approve order")).to_have_count(0)


def test_a_tool_call_is_denied_with_a_button(serve, sign_in):
    page = sign_in(serve(ask_first))
    say(page, "order a heron", "asked")
    card = page.get_by_role("region", name="Approve order")
    card.get_by_role("button", name="Deny").click()
    expect(message(page, "Hermes, ", "decided")).to_be_visible()
    expect(page.get_by_text("You refused order.")).to_be_visible()
    expect(card).to_have_count(0)
    expect(composer(page)).to_be_focused()


async def ask_briefly(turn):
    """Ask for an approval that expires at once."""
    approval = await turn.records.ask_approval(
        turn.session_key, "order", "{}", delivery="host", seconds=1
    )
    turn.emit(ApprovalAsked(approval))
    return "asked"


def test_a_call_whose_approval_has_expired_cannot_be_approved(serve, sign_in):
    page = sign_in(serve(ask_briefly))
    say(page, "order a heron", "asked")
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve.and_(page.locator(":enabled"))).to_have_count(0)


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wrong_clock_of_the_browser_does_not_change_the_expiry(serve, sign_in, hours):
    web = serve(ask_first)
    page = sign_in(web, "/settings")
    page.clock.install(time=time.time() + hours * 3600)
    page.goto(f"{web.url}/#/")
    say(page, "order a heron", "asked")
    card = page.get_by_role("region", name="Approve order")
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"expires in (59|60):\d\d"))
    expect(card.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
