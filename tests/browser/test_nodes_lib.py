"""Nodes become DOM in a real browser: only what is allowed; finished blocks stay as they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from hermes.adapters.http.api.streams.rendered.growing_turn import GrowingTurn
from hermes.adapters.http.markdown.parsing import parse
from hermes.events import TextDelta, TurnEnded
from hermes.messages import Reply
from tests.support.page_modules import blank_page, module, serve_blank

BUILD = """
async ([module, nodes]) => {
  const { build } = await import(module);
  const box = document.createElement("div");
  box.append(build(nodes));
  document.body.replaceChildren(box);
  return box.innerHTML;
}
"""
GROW = """
async ([module, updates]) => {
  const { GrowingView, build } = await import(module);
  const view = new GrowingView(), kept = [];
  let touched = 0;
  for (const update of updates) {
    const before = [...view.element.childNodes].slice(0, view.finished);
    view.update(update);
    touched += before.filter((node, index) => view.element.childNodes[index] !== node).length;
  }
  const whole = document.createElement("div");
  whole.append(build(view.nodes));
  return { same: whole.innerHTML === view.element.innerHTML, nodes: view.nodes, touched };
}
"""
KEEP = """
async ([module, updates]) => {
  const { GrowingView } = await import(module);
  const view = new GrowingView();
  document.body.append(view.element);
  view.update(updates[0]);
  const selector = "li em", before = view.element.querySelector(selector);
  const records = [];
  new MutationObserver((found) => records.push(...found)).observe(view.element,
    { childList: true, characterData: true, subtree: true });
  view.update(updates[1]);
  await new Promise((resolve) => setTimeout(resolve));
  return {
    same: view.element.querySelector(selector) === before,
    changes: records.map((record) => `${record.type} ${record.target.nodeName}`),
  };
}
"""
TEXT = """# A *title*

A paragraph with `code`, **bold** and [a link](https://a.example).

```python
def answer():
    return 42
```

| a | b |
|---|--:|
| 1 | 2 |

- [ ] open
- [x] done
  1. nested

> quoted

The end"""
HOSTILE = [
    (["script", ["alert(1)"], {}], "<span>alert(1)</span>"),
    (["iframe", [], {"src": "https://a.example"}], "<span></span>"),
    (["a", ["x"], {"href": "javascript:alert(1)"}], "<a>x</a>"),
    (["a", ["x"], {"href": "/api/tickets"}], "<a>x</a>"),
    (["a", ["x"], {"href": "data:text/html,x", "onclick": "alert(1)"}], "<a>x</a>"),
    (["p", ["x"], {"style": "color:red", "id": "a", "class": "button"}], "<p>x</p>"),
    (["span", ["x"], {"class": "k x"}], "<span>x</span>"),
    (["svg", [["script", ["x"], {}]], {"onload": "x"}], "<span><span>x</span></span>"),
    (["ol", [], {"start": "1e9"}], "<ol></ol>"),
    (["td", [], {"align": "center;x"}], "<td></td>"),
    (["__proto__", ["x"], {}], "<span>x</span>"),
    (["constructor", ["x"], {}], "<span>x</span>"),
    ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
    (7, ""),
]


@pytest.fixture
def tab(new_context, web):
    context = new_context(extra_http_headers={"Authorization": f"Bearer {web.server.secret}"})
    serve_blank(context)
    return blank_page(context, web)


def plain(value):
    return msgspec.to_builtins(value)


def growing(text, size):
    """Return the updates of a text that arrives in pieces."""
    turn, found = GrowingTurn(1, lambda _: False), []
    for at in range(0, len(text), size):
        turn.receive(TextDelta(text[at : at + size]))
        found += turn.advance(False)
    turn.receive(TurnEnded(Reply(text="", session_id="s", turn_id=1)))
    return plain([*found, *turn.advance(False)])


def test_markdown_is_shown(tab):
    html = tab.evaluate(BUILD, [module("lib/dom.js"), plain(parse(TEXT))])
    for part in (
        "<h1>A <em>title</em></h1>", "<code>code</code>", "<strong>bold</strong>",
        '<a href="https://a.example" target="_blank" rel="noopener noreferrer">a link</a>',
        '<span class="language">python</span>', '<span class="k">def</span>',
        '<div class="table"', 'style="text-align: right;"', "<blockquote><p>quoted</p>",
    ):  # fmt: skip
        assert part in html, html
    boxes = tab.locator("input[type=checkbox]")
    assert [boxes.nth(number).is_checked() for number in range(2)] == [False, True]
    assert boxes.first.is_disabled()


def test_hostile_nodes_are_harmless(tab):
    for node, expected in HOSTILE:
        assert tab.evaluate(BUILD, [module("lib/dom.js"), [node]]) == expected


def test_images_of_others_are_not_loaded(tab):
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    wrong = (
        "https://a.example/x.png", "//a.example/x.png", "data:image/svg+xml;base64,AAAA",
        "/api/conversations/../files/x", "/api/conversations/%2e%2e/files/x", "/api/tickets",
    )  # fmt: skip
    nodes = [["img", [], {"src": src, "alt": "a cat"}] for src in wrong]
    html = tab.evaluate(BUILD, [module("lib/dom.js"), nodes])
    assert "src=" not in html
    assert html.count('alt="a cat"') == len(wrong)
    assert not [url for url in asked if "lib/" not in url]


def test_nodes_that_nest_without_end_do_no_harm(tab):
    depth = tab.evaluate(
        """async (module) => {
          const { build } = await import(module);
          let node = "deep";
          for (let at = 0; at < 2000; at += 1) node = ["em", [node], {}];
          const box = document.createElement("div");
          box.append(build([node]));
          return box.querySelectorAll("em").length;
        }""",
        module("lib/dom.js"),
    )
    assert depth <= 101


def test_code_is_copied(tab, web):
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=web.url)
    tab.evaluate(BUILD, [module("lib/dom.js"), plain(parse("```python\nreturn 1\n```"))])
    tab.get_by_role("button", name="Copy").click()
    tab.get_by_text("Copied").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()").strip() == "return 1"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_growing_text_ends_as_the_whole_one(tab, size):
    found = tab.evaluate(GROW, [module("lib/dom.js"), growing(TEXT, size)])
    assert found == {"same": True, "nodes": plain(parse(TEXT)), "touched": 0}


LINES = (
    "",
    "a *b*",
    "- x",
    "  - y",
    "1. z",
    "> q",
    "```",
    "    code",
    "| a | b |",
    "|---|---|",
    "# h",
)


def test_any_growing_text_ends_as_the_whole_one(tab):
    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.sampled_from(LINES), max_size=12).map("\n".join), st.integers(1, 30))
    def run(text, size):
        found = tab.evaluate(GROW, [module("lib/dom.js"), growing(text, size)])
        assert found == {"same": True, "nodes": plain(parse(text)), "touched": 0}

    run()


def test_what_is_shown_already_is_not_built_again(tab):
    updates = []
    turn = GrowingTurn(1, lambda _: False)
    for piece in ("done\n\n- an *item* here", " and more"):
        turn.receive(TextDelta(piece))
        updates += plain(turn.advance(False))
    found = tab.evaluate(KEEP, [module("lib/dom.js"), updates])
    assert found == {"same": True, "changes": ["characterData #text"]}
