"""The browser of the tests reports every problem of a page."""

from __future__ import annotations

import subprocess
import sys

import pytest
from playwright.sync_api import expect

from hermes.adapters.http.web.assets import FOLDER
from tests.support.browser import PROJECT
from tests.support.page import ask

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
ONE_TEST = "tests/browser/test_harness.py::test_the_page_opens_without_a_problem"
CODE = {".js", ".mjs", ".cjs", ".ts", ".wasm", ".map"}


def test_the_page_opens_without_a_problem(page):
    response = page.reload()
    assert response.status == 200
    assert "trusted-types 'none'" in response.headers["content-security-policy"]
    expect(page).to_have_title("New conversation · Hermes")
    expect(page.get_by_role("link", name="Hermes, home")).to_be_visible()
    assert "trio_asyncio" not in sys.modules


@pytest.mark.parametrize("languages", ['["en-US@posix"]', '["de-DE", "en_GB", "C"]', "[]"])
def test_the_page_opens_in_every_language(new_context, sign_in, web, languages):
    context = new_context()
    context.add_init_script(
        f"Object.defineProperty(Navigator.prototype, 'languages', {{ value: {languages} }})"
    )
    context.request.post(f"{web.url}/api/sign-in", data={"token": web.sign_in_token()})
    ask(sign_in(web, context=context), "hello")


def test_what_a_page_must_not_do_is_noticed(new_context, web, problems):
    page = new_context().new_page()
    problems.expect("40[14]")  # nobody is signed in
    page.goto(web.url)
    problems.expect("script-src", "requires 'Trusted|trusted-types", "inline script", "on purpose")
    page.evaluate("setTimeout(() => { throw new Error('on purpose') })")
    page.evaluate("""() => {
      const script = document.createElement("script");
      try { script.textContent = "window.bad = 1"; } catch {}
      document.body.append(script);
      try { document.body.innerHTML = "<b>bad</b>"; } catch {}
    }""")
    page.wait_for_function("window.bad === undefined")
    page.wait_for_timeout(0)
    seen = "\n".join(problems._found)
    assert "on purpose" in seen
    assert "require-trusted-types-for" in seen


def test_without_a_browser_ci_fails(tmp_path):
    """Neither does the machine have one, nor can one be fetched."""
    environment = {
        "PATH": "/nonexistent", "HOME": str(tmp_path), "BROWSER_FOLDER": str(tmp_path),
        "npm_config_registry": "http://127.0.0.1:9", "npm_config_fetch_retries": "0",
        "REQUIRE_BROWSER": "1",
    }  # fmt: skip
    run = subprocess.run(
        [*PYTEST, ONE_TEST], env=environment, cwd=PROJECT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "npm cannot fetch @sparticuz/chromium" in run.stdout


def test_the_repository_has_no_code_for_browsers_but_the_page():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    files = [PROJECT / name for name in listed.stdout.split("\0") if name]
    found = {each for each in files if each.suffix in CODE}
    assert found == {each for each in FOLDER.rglob("*") if each.suffix in CODE}
    for each in found:
        text = each.read_text()
        assert "license" not in text.lower(), each
        assert max(map(len, text.splitlines())) < 400, f"{each} is minified"
