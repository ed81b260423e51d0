"""Hostile Markdown, titles and names of files: they are shown as text, and nothing runs."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from hermes.messages import Message, Source
from tests.support.files import png
from tests.support.page import ask, messages, say

TEXTS = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1><g/onload=window.pwned=1></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>link</a>",
    "[link](javascript:window.pwned=1)",
    "[link](JaVaScRiPt:window.pwned=1)",
    "[link](&#106;avascript:window.pwned=1)",
    "[link](java\tscript:window.pwned=1)",
    "[link](data:text/html,<script>parent.pwned=1</script>)",
    "[link](vbscript:pwned)",
    "[link](//evil.example/x)",
    "[link](/api/sign-out)",
    "[ref]\n\n[ref]: javascript:window.pwned=1",
    "![image](https://evil.example/pixel.png)",
    "![image](//evil.example/pixel.png)",
    "![image](data:image/svg+xml,<svg onload='parent.pwned=1'/>)",
    '![image](x" onerror="window.pwned=1)',
    "<javascript:window.pwned=1>",
    '<https://a.example/"onmouseover="window.pwned=1>',
    "```html\n<script>window.pwned = 1</script>\n```",
    '```"><script>window.pwned=1</script>\ncode\n```',
    "`<img src=x onerror=window.pwned=1>`",
    "| <script>window.pwned=1</script> |\n|---|\n| <img src=x onerror=window.pwned=1> |",
    "- [ ] <input autofocus onfocus=window.pwned=1>",
    "<style>*{display:none}</style><link rel=stylesheet href=//evil.example>",
    "<base href=//evil.example><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><button autofocus>x</button></form>",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1}",
    "__proto__ constructor toString [__proto__](constructor)",
    "\u202eevil\u202c \u2066hidden\u2069 \u200b\ufeff \x07",
    "> " * 300 + "deep",
    "*a " * 2000,
    "[" * 2000,
    "a" * 5000,
    "W" * 400 + " \u0e49\u0e49\u0e49" + "\u0301" * 200,
)
RUNS = """() => {
  const address = /^(#|blob:|data:image\\/(png|jpeg|gif|webp);|mailto:|https?:)/i;
  const script = /^\\s*(javascript|vbscript|data:text)/i;
  const elsewhere = (value) => !address.test(value)
    && new URL(value, location.href).origin !== location.origin;
  const bad = ({ name, value }) => name.startsWith("on") || script.test(value)
    || (["href", "src", "action"].includes(name) && elsewhere(value));
  const elements = "script:not([src]), iframe, object, embed, base, meta[http-equiv], form[action]";
  return [...document.querySelectorAll("*")].flatMap((node) => [
    ...(node.matches(elements) ? [node.outerHTML] : []),
    ...[...node.attributes].filter(bad).map(({ name, value }) => `${name}=${value}`),
  ]);
}"""


def ours(page, href):
    """Whether an address is one of the server of the page."""
    return urlsplit(href).netloc == urlsplit(page.url).netloc


def assert_harmless(page):
    """Nothing ran, nothing could run, and no image is somebody else's."""
    assert page.evaluate("window.pwned") is None
    assert page.evaluate(RUNS) == []
    sources = page.locator("main img").evaluate_all("(all) => all.map((each) => each.src)")
    assert [each for each in sources if "evil" in each] == []
    links = page.locator("main article a").evaluate_all(
        "(all) => all.map((each) => [each.getAttribute('href'), each.rel])"
    )
    files = "/api/conversations/"
    for href, rel in links:
        if href is not None and urlsplit(href).path.startswith(files) and ours(page, href):
            continue
        assert href is None or href.startswith(("http:", "https:", "mailto:", "#")), href
        assert "noreferrer" in rel or href is None or href.startswith("#"), (href, rel)


def test_stored_texts_are_harmless(page, web):
    ask(page, "hello")
    key = page.locator("li.conversation a").get_attribute("href").removeprefix("#/c/")
    key = key.replace("%3A", ":")
    rows = [Message(role, text) for text in TEXTS for role in ("user", "assistant")]
    source = Source("web", chat_id=key.rpartition(":")[2])
    web.call(web.server.runtime.api.add_messages, key, rows, source)
    page.reload()
    expect(messages(page).filter(has_text="W" * 400)).to_have_count(2)
    page.get_by_role("log", name="Messages").evaluate("(node) => { node.scrollTop = 0; }")
    expect(messages(page).filter(has_text="<iframe")).to_have_count(2)
    assert_harmless(page)
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(wide)


def test_streamed_texts_are_harmless(page, web):
    say(page, "hold on")
    turn = web.next_turn()
    for text in TEXTS[:31]:
        middle = len(text) // 2
        turn.emit(text[:middle], text[middle:], "\n\n")
    turn.emit("the very last words")
    running = page.get_by_label("Hermes is answering")
    expect(running).to_contain_text("the very last words")
    assert_harmless(page)
    turn.finish("\n\n".join(TEXTS[:31]))
    expect(running).to_be_hidden()
    assert_harmless(page)


@pytest.mark.parametrize("title", ["<img src=x onerror=window.pwned=1>", "\u202e" + "x" * 90])
def test_titles_are_texts(page, title):
    ask(page, "hello")
    page.get_by_role("button", name="Options of this conversation").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill(title)
    page.get_by_role("textbox", name="Title").press("Enter")
    shown = title.lstrip("\u202e")
    expect(page.locator("h1.name")).to_contain_text(shown)
    expect(page.locator("li.conversation")).to_contain_text(shown)
    assert_harmless(page)


def test_names_of_files_are_texts(page):
    names = [
        "<img src=x onerror=window.pwned=1>.png",
        "../../../etc/passwd",
        "\u202egnp.exe",
        "a" * 300,
    ]
    files = [{"name": each, "mimeType": "image/png", "buffer": png()} for each in names]
    page.locator("input[type=file]").set_input_files(files)
    attached = page.get_by_role("list", name="Attached files").locator("li")
    expect(attached).to_have_count(len(names))
    expect(page.locator("progress:visible")).to_have_count(0)
    assert_harmless(page)
    say(page, "what is it?")
    expect(messages(page)).to_have_count(2)
    assert_harmless(page)


def test_svg_files_are_downloads(page):
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>parent.pwned=1</script></svg>"
    file = {"name": "drawing.svg", "mimeType": "image/svg+xml", "buffer": svg}
    page.locator("input[type=file]").set_input_files([file])
    expect(page.locator("progress:visible")).to_have_count(0)
    say(page, "what is it?")
    expect(messages(page)).to_have_count(2)
    expect(page.locator("article a[download]")).to_have_count(1)
    expect(page.locator("article img")).to_have_count(0)
    assert_harmless(page)
