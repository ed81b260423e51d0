"""The page after a killed server, a lost connection, a stopped server and a sleeping laptop."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import expect

from hermes.testing import open_model
from hermes.testing.script import Drip
from tests.support.bot_process import BotProcess
from tests.support.page import answer, ask, messages, say
from tests.support.web import running

LONG = " ".join(f"word{number}" for number in range(1000))
LOST = "net::ERR_"


@pytest.fixture
def model():
    """A loopback model in a thread. It answers slowly once, and then at once."""

    def reply(request):
        return LONG if request.text == "tell me" else f"echo: {request.text}"

    with running(lambda: open_model(reply)) as (opened, _):
        yield opened


@pytest.fixture
def bot(tmp_path, model, new_context):
    """A bot in a process."""
    with BotProcess(tmp_path, model.openai_url) as process:
        yield process
        process.go_on()
        new_context.close()


def test_kill_9_in_mid_stream(bot, model, sign_in, problems):
    problems.expect(LOST)
    model.fail(Drip(0.2))
    page = sign_in(bot)
    say(page, "tell me")
    growing = page.get_by_label("Hermes is answering")
    expect(growing).to_contain_text("word3")
    page.evaluate("window.neverReloaded = true")
    bot.kill()
    connection = page.locator(".connection")
    expect(connection).not_to_have_attribute("data-state", "live")
    expect(connection).to_be_visible()
    bot.start()
    expect(answer(page, LONG)).to_have_count(1)
    expect(growing).to_be_hidden()
    expect(connection).to_have_attribute("data-state", "live")
    expect(messages(page)).to_have_count(2)
    assert page.evaluate("window.neverReloaded")
    ask(page, "and on")
    expect(messages(page)).to_have_count(4)


def test_a_server_that_is_stopped_and_goes_on(bot, sign_in, problems):
    problems.expect(LOST)
    page = sign_in(bot)
    ask(page, "hello")
    bot.stop()
    say(page, "are you there?")
    expect(messages(page)).to_have_count(3)
    bot.go_on()
    expect(answer(page, "echo: are you there?")).to_have_count(1)
    expect(messages(page)).to_have_count(4)


def test_offline_and_online_again(page, web, sign_in, problems):
    problems.expect(LOST)
    ask(page, "hello")
    other = sign_in(web, page.url.partition("#")[2])
    page.context.set_offline(True)
    expect(page.locator(".connection")).to_have_attribute("data-state", "offline")
    expect(page.locator(".connection")).to_contain_text("Offline")
    say(page, "sent without a connection")
    ask(other, "from another device")
    expect(messages(page).filter(has_text="sent without a connection")).to_have_count(1)
    page.context.set_offline(False)
    for each in (page, other):
        expect(answer(each, "echo: from another device")).to_have_count(1)
        expect(answer(each, "echo: sent without a connection")).to_have_count(1)
        expect(messages(each)).to_have_count(6)
    expect(page.locator(".connection")).to_have_attribute("data-state", "live")


def test_a_laptop_that_slept(page, web, sign_in):
    ask(page, "hello")
    other = sign_in(web, page.url.partition("#")[2])
    expect(messages(other)).to_have_count(2)
    tools = page.context.new_cdp_session(page)
    tools.send("Page.setWebLifecycleState", {"state": "frozen"})
    for number in range(3):
        ask(other, f"meanwhile {number}")
    tools.send("Page.setWebLifecycleState", {"state": "active"})
    expect(messages(page)).to_have_count(8)
    for number in range(3):
        expect(answer(page, f"echo: meanwhile {number}")).to_have_count(1)


def test_no_thread_of_the_servers_is_left():
    assert "web server" not in {each.name for each in threading.enumerate()}
