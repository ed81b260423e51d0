"""Signing in, sessions and people, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import axe_script

PHONE = {"width": 360, "height": 740}
REFUSED = (
    r"status of (401|403|404|409)",
    "No pairing request has this code",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",  # the stream of a session that was revoked
)
SIGNED_IN = "nav a[aria-current]"


@pytest.fixture
def open_page(new_context, problems):
    """Open the page in a new browser, in which nobody is signed in."""
    problems.expect(*REFUSED)

    def opened(web, fragment="", **options):
        page = new_context(**options).new_page()
        page.goto(f"{web.url}/{fragment}")
        return page

    return opened


def link(web, name="operator", role="operator"):
    return f"#token={web.sign_in_token(name, role)}"


def settings(page):
    page.get_by_role("link", name="Settings").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    return page


def section(page, title):
    return page.locator("section").filter(has=page.get_by_role("heading", name=title, exact=True))


def findings(page):
    """The serious findings of axe-core. It runs in the page, as everything that a test says."""
    page.evaluate(axe_script())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in result["violations"]
        if each["impact"] in {"serious", "critical"}
    ]


def test_a_link_signs_in_once_and_leaves_no_token(web, open_page):
    address = link(web)
    page = open_page(web, address)
    expect(page.locator(SIGNED_IN)).to_be_visible()
    token = address.partition("=")[2]
    assert token not in page.url
    assert token not in page.evaluate("JSON.stringify([history.state, location.href])")
    stored = page.evaluate(
        "JSON.stringify([document.cookie, {...localStorage, ...sessionStorage}])"
    )
    assert token not in stored
    assert "hmw_" not in stored
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.reload()
    expect(page.locator(SIGNED_IN)).to_be_visible()
    second = open_page(web, address)
    expect(second.get_by_role("alert")).to_contain_text("The link was used already")
    expect(second.get_by_text("hermes web", exact=True)).to_be_visible()


def test_a_visitor_asks_and_is_let_in(web, open_page):
    visitor = open_page(web, viewport=PHONE)
    visitor.get_by_label("Your name").fill("Carl")
    visitor.get_by_role("button", name="Ask for access").click()
    code = visitor.locator("output.code").inner_text()
    visitor.reload()
    expect(visitor.locator("output.code")).to_have_text(code)
    operator = settings(open_page(web, link(web)))
    expect(section(operator, "Let somebody in").locator("li")).to_contain_text("Carl")
    operator.get_by_label("Code").fill(code.lower())
    operator.get_by_role("button", name="Let in").click()
    expect(visitor.locator(SIGNED_IN)).to_be_visible()
    expect(visitor.get_by_role("link", name="Live view")).to_be_hidden()
    expect(section(operator, "People").locator("li").filter(has_text="Carl")).to_be_visible()


def test_a_wrong_code_is_refused(web, open_page):
    operator = settings(open_page(web, link(web)))
    operator.get_by_label("Code").fill("AAAA-0001")
    operator.get_by_role("button", name="Let in").click()
    expect(operator.get_by_role("alert")).to_contain_text("No pairing request has this code")


def test_an_operator_revokes_a_session_and_removes_a_person(web, open_page):
    people = [open_page(web, link(web, name, "user")) for name in ("ann", "bob")]
    for page in people:
        expect(page.locator(SIGNED_IN)).to_be_visible()
    operator = settings(open_page(web, link(web)))
    for title, name, action in (("Sessions", "ann", "Revoke"), ("People", "bob", "Remove")):
        entry = section(operator, title).locator("li").filter(has_text=name).first
        entry.get_by_role("button", name=action).click()
        entry.get_by_role("button", name=f"{action} now?").click()
        page = people.pop(0)
        page.reload()
        expect(page.get_by_role("heading", name="Sign in to Hermes")).to_be_visible()


def test_signing_out_and_in_as_somebody_else(web, open_page):
    page = open_page(web, link(web, "ann", "user"))
    expect(page.locator(SIGNED_IN)).to_be_visible()
    page.goto(f"{web.url}/{link(web, 'bob', 'user')}")
    expect(page.get_by_text("You are signed in as ann, and the link is for bob.")).to_be_visible()
    page.get_by_role("button", name="Stay signed in").click()
    expect(settings(page).locator(".person")).to_contain_text("ann")
    page.goto(f"{web.url}/{link(web, 'bob', 'user')}")
    page.get_by_role("button", name="Switch").click()
    expect(settings(page).locator(".person")).to_contain_text("bob")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to Hermes")).to_be_visible()
    assert page.context.cookies() == []


def test_another_device_is_signed_in(web, open_page):
    page = settings(open_page(web, link(web, "ann", "user")))
    page.get_by_role("button", name="Sign in another device").click()
    address = page.locator(".command code").inner_text()
    assert address.startswith(f"{web.url}/#token=")
    phone = open_page(web, address.removeprefix(f"{web.url}/"), viewport=PHONE)
    expect(phone.locator(SIGNED_IN)).to_be_visible()
    expect(section(settings(phone), "Sessions").locator("li")).to_have_count(2)


def test_the_colours_are_chosen_by_hand_and_stay(web, open_page):
    page = settings(open_page(web, link(web)))
    page.get_by_role("radio", name="Dark").check(force=True)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("radio", name="Dark")).to_be_checked()
    page.get_by_role("button", name=re.compile("Colours: dark")).click()
    expect(page.locator("html")).not_to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_sign_in_and_the_settings_are_accessible_and_fit_a_phone(web, open_page, colours):
    page = open_page(web, viewport=PHONE, color_scheme=colours, reduced_motion="reduce")
    expect(page.get_by_label("Your name")).to_be_visible()
    assert findings(page) == []
    page.goto(f"{web.url}/{link(web)}")
    settings(page)
    expect(page.locator(".entries li").first).to_be_visible()
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
