"""No Markdown gives a tag, an attribute or an address that the page must not have."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from pygments.token import STANDARD_TYPES

from hermes.adapters.http.markdown.limits import MAX_BLOCK, MAX_DEPTH, MAX_INLINE_DEPTH
from hermes.adapters.http.markdown.nodes import TAGS, Element
from hermes.adapters.http.markdown.parsing import GrowingText, parse

VALUES = {
    "href": re.compile("(?i:https?://|mailto:)[!-~]+"),
    "src": re.compile(
        "/api/conversations/[^/?#]+/files/[A-Za-z0-9_-]+"
        "|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+"
    ),
    "alt": re.compile("(?s).*"),
    "checked": re.compile("true|false"),
    "start": re.compile("[0-9]{1,9}"),
    "align": re.compile("left|center|right"),
    "language": re.compile("[A-Za-z0-9_+#.-]{1,40}"),
    "class": re.compile("|".join({"plain", *filter(None, STANDARD_TYPES.values())})),
}
"""The values that attributes may have."""
PARENTS = {
    "li": {"ul", "ol"},
    "thead": {"table"},
    "tbody": {"table"},
    "tr": {"thead", "tbody"},
    "th": {"tr"},
    "td": {"tr"},
    "span": {"code"},
    "input": {"li"},
}
"""The elements that have certain parents only."""
EMPTY = {"br", "hr", "img", "input"}


def check(node, parents=()):
    """Check a node with all that it contains."""
    if isinstance(node, str):
        assert node
        assert not re.search("[\0\r\ud800-\udfff]", node)
        return
    assert len(parents) <= MAX_DEPTH + MAX_INLINE_DEPTH
    assert set(node.attributes) <= TAGS[node.tag]
    for name, value in node.attributes.items():
        assert VALUES[name].fullmatch(value), (name, value)
    assert (node.attributes.get("class") == "plain") <= (node.tag == "p")
    assert not parents or parents[-1] in PARENTS.get(node.tag, {parents[-1]})
    assert (parents == ()) <= (node.tag not in PARENTS)
    assert node.tag != "a" or "a" not in parents
    assert node.tag != "a" or "href" in node.attributes
    assert not (node.children and node.tag in EMPTY)
    for child in node.children:
        check(child, (*parents, node.tag))


def check_text(text):
    """Check the blocks of a text, whole and in two pieces, and return them."""
    blocks = parse(text)
    for block in blocks:
        assert isinstance(block, Element)
        check(block)
    growing = GrowingText()
    growing.feed(text[: len(text) // 2])
    finished = growing.take_finished()
    for block in growing.open_blocks():
        check(block)
    growing.feed(text[len(text) // 2 :])
    assert [*finished, *growing.end()] == blocks
    assert msgspec.json.decode(msgspec.json.encode(blocks), type=list[Element]) == blocks
    return blocks


SHORT = [
    "<script>alert(1)</script>",
    "<script>\nalert(1)\n</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!--><script>alert(1)</script>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php echo 1 ?>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href=javascript:alert(1)>a</a>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](&#x6A;avascript:alert(1))",
    "[a](<java\tscript:alert(1)>)",
    "[a](\x01javascript:alert(1))",
    "[a](javascript&colon;alert(1))",
    "[a](vbscript:x) [b](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](https://a.example/\"onmouseover='alert(1))",
    '[a](https://a.example "\\" onmouseover=alert(1)")',
    "![a](javascript:alert(1)) ![b](data:text/html,<script>alert(1)</script>)",
    '![a](data:image/svg+xml;base64,PHN2Zz4=) ![b](data:image/png;base64,AAAA="x)',
    '![" onerror="alert(1)](/api/conversations/a/files/b)',
    "![a](/api/conversations/a/files/../../../rpc) ![b](/api/../x) ![c](//evil.example/x)",
    "<javascript:alert(1)> <data:text/html,x> <https://a.example/<script>>",
    '```"><script>alert(1)</script>\na\n```',
    "```html\n<script>alert(1)</script>\n```",
    "``` onclick=alert(1)\na\n```",
    "| <script> | b |\n|---|---|\n| <img onerror=x> | [a](javascript:x) |",
    "- [x] <input onfocus=alert(1) autofocus>",
    "[a]: javascript:alert(1)\n\n[a] [a][] [b][a]",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#0; &#xD800; &#x110000; &NotAnEntity;",
    "a\0b [c\0](https://a.example/\0) `\0`\n\n```\0\n\0\n```",
    "\ud800 [\udc00](https://a.example/\ud83d) `\udfff`\n\n```\ud800\n\udc00\n```\n\n    \ud800",
    "\u202ea\u202c \u2066b [\u202e](https://a.example/\u202e) <https://\u202ea.example>",
    "\ufeff# a\n\n\u2028b\u2029c\x0bd\x0ce\x85f",
    "[a](https://[::1) [b](https://[) [c](https://]/) [d](http://%) [e](http://\u212a.example)",
    "[a](https://xn--a\u00fc.example) [b](https://" + "\u00fc" * 500 + ".example) <a@\u00fc>",
    "[![a](https://a.example/x.png) <https://b.example>](https://b.example)",
    "````\n```\n~~~\n",
    "> ```\n> a\nb\n\n```\nc",
    "- ```\n\n  a\nb\n```\n",
    "*" * 99 + "a" + "*" * 98 + "_~`" * 30,
]


@pytest.mark.parametrize("text", SHORT)
def test_hostile_texts_give_harmless_nodes(text):
    check_text(text)
    check_text(f"# {text}\n\n> {text}\n\n- {text}\n\n**{text}** [x {text}](https://a.example)\n")


LONG = [
    "[", "![", "[a](", "[![", "]", "(", "[]()", "![](", "[a](b", "[a](<b", "*", "_", "*a ",
    "**a*_", "~~a", "`", "`a``", "<", "<a", "<!--", "<https:", "&", "&#", "\\", "\\\n", "\n", " ",
    "\t", "  \n", ">", "> ", "- ", "+ a\n", "1. ", "1. a\n", "-\n", "#", "# ", "=", "a\n=", "|",
    "|\n", "|-|\n", "a|b\n", "|-", "```", "```\n", "~~~\n", "> a\n", ">>>>> a\n", "- - - a\n",
    "[a]: b\n", "    a\n", "\u202e", "\ud800", "\x00", "\r", "<script>",
    "![a](https://a.example)", "*a_b**c__", "* a\n 1. b\n",
]  # fmt: skip


@pytest.mark.parametrize("unit", LONG)
def test_long_runs_of_one_construct_end(unit):
    """Quadratic time would make this test take hours."""
    blocks = check_text(unit * (60_000 // len(unit)))
    assert all(len(text) <= MAX_BLOCK for block in blocks for text in texts(block))


def texts(node):
    return [node] if isinstance(node, str) else [t for child in node.children for t in texts(child)]


LARGE = {
    "nested brackets": "[" * 50_000 + "]" * 50_000,
    "quotes": ">" * 100_000,
    "nested links": "[" * 20_000 + "](https://a.example)" * 4_000,
    "nested quotes": "\n".join(">" * (i % 60) + " a" for i in range(3_000)),
    "nested lists": "\n".join(" " * (i % 60) + "- a" for i in range(2_500)),
    "wide table": "|a" * 5_000 + "|\n" + "|-" * 5_000 + "|\n" + "|\n" * 10_000,
    "long table": "|a|b|\n|-|-|\n" + "|1|2|\n" * 16_000,
    "short rows": "|a" * 30 + "|\n" + "|-" * 30 + "|\n" + "|\n" * 1_500,
    "runs of backticks": " ".join("`" * i for i in range(400)),
    "an open fence": "```python\n" + "x = '\n" * 16_000,
    "fences in a list": "- ```\n  a\n" * 5_000,
    "a long language": "```" + "a" * 100_000 + "\nb\n```",
    "a long fence": "`" * 60_000 + "\n" + "a\n" * 40_000,
    "a long address": "[a](https://a.example/" + "a" * 40_000 + ")",
    "a large image": "![a](data:image/png;base64," + "A" * 40_000 + ")",
    "hostile code": "".join(
        f"```{name}\n{(unit * 500)[:390]}\n{(unit + chr(10)) * 30}```\n"
        for name in ("python", "csharp", "java", "html", "less", "make", "typescript")
        for unit in ("a", "'\\", '"', "<?", "/*", "a.", "\n ", "a b(", "1e", "`")
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_texts_end(name):
    check_text(LARGE[name])


def test_short_rows_do_not_multiply():
    """A row of one character has as many cells as the header, but they are not sent."""
    text = LARGE["short rows"]
    assert len(msgspec.json.encode(parse(text))) < 20 * len(text)


fragments = st.sampled_from([*SHORT, *LONG, "\n\n", "\n", "a", " ", "    ", "> ", "- ", "|"])


@settings(max_examples=150, deadline=None)
@given(st.lists(fragments, max_size=12).map("".join))
def test_combinations_give_harmless_nodes(text):
    check_text(text)


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_arbitrary_characters_give_harmless_nodes(text):
    check_text(text)


link_text = st.text("abc:/.?#[]@!$&'()*+,;=%\\<>\"`{}|^ \té\u202e0123456789", max_size=40)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["", "https://", "http://", "mailto:", "data:", "/api/", "//"]), link_text)
def test_arbitrary_addresses_give_harmless_nodes(scheme, rest):
    check_text(f"[a]({scheme}{rest}) ![b](<{scheme}{rest}>) <{scheme}{rest}>")
