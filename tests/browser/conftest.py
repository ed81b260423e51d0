"""A real browser: one for all tests, with a context of its own for each test."""

from __future__ import annotations

import os
import re

import pytest
from playwright.sync_api import Error, expect, sync_playwright

from tests.support.browser import PROJECT, NoBrowser, find_browser
from tests.support.web import web_server

MILLISECONDS = 30_000
"""How long a test waits for a state of the page."""
FAILURES = PROJECT / "build" / "browser" / "failures"
VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) => {
  reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@pytest.fixture(scope="session")
def chromium():
    """The browser that all tests share."""
    try:
        found = find_browser()
    except NoBrowser as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"There is no browser for these tests. {error}")
    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**found.options())
        yield browser
        browser.close()


class Problems:
    """What pages complained about: violations of the policy, errors on the console, exceptions."""

    def __init__(self):
        self._found = []
        self._expected = []

    def watch(self, context):
        """Collect the problems of all pages of a context."""
        context.expose_binding("reportViolation", lambda _, text: self._found.append(text))
        context.add_init_script(VIOLATIONS)
        context.on("console", self._said)
        context.on("weberror", lambda error: self._found.append(f"exception: {error.error}"))

    def _said(self, message):
        if message.type in {"error", "warning"}:
            self._found.append(f"{message.type}: {message.text} ({message.location['url']})")

    def expect(self, *patterns):
        """Allow errors that contain one of these regular expressions, such as a lost connection."""
        self._expected += patterns

    @property
    def found(self):
        """The problems that the test did not expect."""
        return [
            each
            for each in self._found
            if not any(re.search(pattern, each) for pattern in self._expected)
        ]


@pytest.fixture(autouse=True)
def problems():
    """Collects the problems of all pages of the test; there must be none at its end."""
    collected = Problems()
    yield collected
    assert collected.found == []


@pytest.fixture
def new_context(chromium, problems, request):
    """Make contexts of the browser: `new_context(viewport=…)`. Each has cookies of its own."""
    contexts = []

    def make(**options):
        context = chromium.new_context(**options)
        context.set_default_timeout(MILLISECONDS)
        problems.watch(context)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        if request.node.stash.get(FAILED, False):
            _photograph(context, request.node.name)
        context.close()


@pytest.fixture
def web(path):
    """A server with the web page, in a thread."""
    with web_server(path) as server:
        yield server


@pytest.fixture
def page(new_context, web):
    """A page on which the user ann is signed in; it shows the chat."""
    context = new_context(extra_http_headers={"Authorization": f"Bearer {web.secret}"})
    page = context.new_page()
    page.goto(web.url)
    return page


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember that a test has failed, for the screenshot."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


def _photograph(context, name):
    FAILURES.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", name)
    for number, page in enumerate(context.pages):
        try:
            page.screenshot(path=FAILURES / f"{name}-{number}.png", timeout=10_000)
        except Error as error:
            (FAILURES / f"{name}-{number}.txt").write_text(f"no screenshot: {error}")
