"""A real browser: one for all tests, with a context of its own for each test."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

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
        if os.environ.get("CI") or os.environ.get("REQUIRE_BROWSER"):
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


class Contexts:
    """Makes contexts of the browser: `new_context(viewport=…)`. Each has cookies of its own."""

    def __init__(self, chromium, problems, item):
        self._chromium, self._problems, self._item = chromium, problems, item
        self._open = []

    def __call__(self, **options):
        defaults = {"locale": "en-GB", "timezone_id": "UTC", "reduced_motion": "no-preference"}
        context = self._chromium.new_context(**{**defaults, **options})
        context.set_default_timeout(MILLISECONDS)
        self._problems.watch(context)
        self._open.append(context)
        return context

    def close(self):
        """Close all contexts. A server that they use ends after them."""
        while self._open:
            context = self._open.pop()
            if self._item.stash.get(FAILED, False):
                _photograph(context, self._item.name)
            context.close()


@pytest.fixture
def new_context(chromium, problems, request):
    """Make contexts of the browser."""
    contexts = Contexts(chromium, problems, request.node)
    yield contexts
    contexts.close()


@pytest.fixture
def serve(path, new_context):
    """Serve the page with a `PageAgent`, or with other agents: `serve(agent=…)`."""
    with ExitStack() as servers:
        yield lambda *arguments, **options: servers.enter_context(
            web_server(path, *arguments, **options)
        )
        new_context.close()


@pytest.fixture
def web(serve):
    """A server with the web page, in a thread."""
    return serve()


@pytest.fixture
def sign_in(new_context):
    """Open the page as a signed-in user: `sign_in(web, "/live", role="operator")`."""

    def open_page(web, route="", *, role="user", name="ann", context=None, **options):
        if context is None:
            context = new_context(**options)
            token = web.sign_in_token(name, role)
            response = context.request.post(f"{web.url}/api/sign-in", data={"token": token})
            assert response.ok, response.text()
        page = context.new_page()
        page.goto(f"{web.url}/#{route}")
        return page

    return open_page


@pytest.fixture
def page(sign_in, web):
    """The chat, opened by the user ann."""
    return sign_in(web)


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
