"""The browser of the tests reports every problem of a page."""

from __future__ import annotations

import sys

from playwright.sync_api import expect


def test_the_page_opens_without_a_problem(page):
    response = page.reload()
    assert response.status == 200
    assert "trusted-types 'none'" in response.headers["content-security-policy"]
    expect(page).to_have_title("New conversation · Hermes")
    expect(page.get_by_role("link", name="Hermes, home")).to_be_visible()
    assert "trio_asyncio" not in sys.modules


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
