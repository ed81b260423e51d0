"""What Markdown becomes: tags, links, images, code."""

from __future__ import annotations

import msgspec
import pytest
from pygments.token import STANDARD_TYPES

from hermes.adapters.http.markdown.highlighting import ALIASES, LANGUAGES, highlight, text_of
from hermes.adapters.http.markdown.limits import (
    MAX_BLOCK,
    MAX_BRACKETS,
    MAX_CODE,
    MAX_CODE_LINE,
    MAX_CODE_RUN,
    MAX_COLUMNS,
    MAX_DEPTH,
    MAX_MISSING,
    MAX_ROWS,
)
from hermes.adapters.http.markdown.nodes import Element
from hermes.adapters.http.markdown.parsing import parse

PNG = "data:image/png;base64,iVBORw0KGgo="
FILE = "/api/conversations/web:1/files/f_1"


def as_json(text):
    return msgspec.json.decode(msgspec.json.encode(parse(text)))


def inline(text):
    [[tag, children, attributes]] = as_json(text)
    assert (tag, attributes) == ("p", {})
    return children


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("a\nb", ["p", ["a\nb"], {}]),
        ("# *Hi* there", ["h1", [["em", ["Hi"], {}], " there"], {}]),
        ("a\n---", ["h2", ["a"], {}]),
        ("###### a", ["h6", ["a"], {}]),
        ("---", ["hr", [], {}]),
        ("> a", ["blockquote", [["p", ["a"], {}]], {}]),
        ("- a\n- b", ["ul", [["li", ["a"], {}], ["li", ["b"], {}]], {}]),
        (
            "- a\n\n- b",
            ["ul", [["li", [["p", ["a"], {}]], {}], ["li", [["p", ["b"], {}]], {}]], {}],
        ),
        ("1. a", ["ol", [["li", ["a"], {}]], {}]),
        ("7. a", ["ol", [["li", ["a"], {}]], {"start": "7"}]),
        ("- [ ] a", ["ul", [["li", [["input", [], {"checked": "false"}], "a"], {}]], {}]),
        ("- [x] a", ["ul", [["li", [["input", [], {"checked": "true"}], "a"], {}]], {}]),
        ("    a < b", ["pre", [["code", ["a < b"], {}]], {}]),
        ("```\na\n```", ["pre", [["code", ["a"], {}]], {}]),
        ("```\n```", ["pre", [["code", [], {}]], {}]),
        ("```mermaid x\na\n```", ["pre", [["code", ["a"], {"language": "mermaid"}]], {}]),
        ('```"><b>\na\n```', ["pre", [["code", ["a"], {}]], {}]),
        ("<b>a</b>\n", ["p", ["<b>a</b>"], {}]),
    ],
)
def test_blocks(text, block):
    assert as_json(text) == [block]


def test_a_table_has_alignments_and_rows_may_be_short():
    [[tag, [head, body], _]] = as_json("|a|b|c|\n|:-|-:|:-:|\n|1|2|3|\n|4\n||5\n")
    assert tag == "table"
    assert head == ["thead", [["tr", [
        ["th", ["a"], {"align": "left"}],
        ["th", ["b"], {"align": "right"}],
        ["th", ["c"], {"align": "center"}],
    ], {}]], {}]  # fmt: skip
    assert [len(row[1]) for row in body[1]] == [3, 1, 2]
    assert body[1][2][1][0] == ["td", [], {"align": "left"}]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("*a* **b** ~~c~~ `d`", [["em", ["a"], {}], " ", ["strong", ["b"], {}], " ",
                                 ["del", ["c"], {}], " ", ["code", ["d"], {}]]),
        ("a  \nb", ["a", ["br", [], {}], "b"]),
        ("a <b>c</b> &amp; &lt;", ["a <b>c</b> & <"]),
        (r"\*a\*", ["*a*"]),
        ("[a *b*](https://a.example)", [["a", ["a ", ["em", ["b"], {}]], {"href": "https://a.example"}]]),
        ("<https://a.example>", [["a", ["https://a.example"], {"href": "https://a.example"}]]),
        ("[a](mailto:a@b.example)", [["a", ["a"], {"href": "mailto:a@b.example"}]]),
        ("[a *b* c](javascript:x)", ["a ", ["em", ["b"], {}], " c"]),
        ("[a](/api/x) b", ["a b"]),
        ("[a][b] [c]", ["[a][b] [c]"]),
        ("[c]: https://c.example", ["[c]: https://c.example"]),
        ("<javascript:x>", ["javascript:x"]),
    ],
)  # fmt: skip
def test_inline(text, nodes):
    assert inline(text) == nodes


@pytest.mark.parametrize(
    "address",
    ["javascript:x", "JavaScript:x", "&#106;avascript:x", "java&#10;script:x", "vbscript:x",
     "data:text/html,x", "file:///etc/passwd", "//evil.example", "/api/rpc", "a.html", "#a", "",
     "http:evil.example", "https:/evil.example", "ftp://a.example", "\u202ehttps://a.example"],
)  # fmt: skip
def test_other_addresses_are_dropped(address):
    assert inline(f"[a](<{address}>) b") == ["a b"]


@pytest.mark.parametrize("address", [PNG, PNG.replace("png", "webp"), FILE])
def test_own_images_are_shown(address):
    assert inline(f"![a *b*]({address})") == [["img", [], {"src": address, "alt": "a b"}]]


@pytest.mark.parametrize(
    "address",
    ["data:image/svg+xml;base64,AAAA", "data:text/html;base64,AAAA", "data:image/png,a", "/api/rpc",
     "/api/conversations/a/events", "/api/conversations/../files/f_1", "/etc/passwd", "a.png",
     "/api/conversations/%2e%2E/files/f_1", "//evil.example/x.png", "javascript:x",
     FILE + "?x", FILE + "/..", "https:evil.example"],
)  # fmt: skip
def test_other_images_are_text(address):
    assert inline(f"![a *b*]({address}) c") == ["a b c"]


def test_an_image_elsewhere_is_a_link_but_not_within_a_link():
    assert inline("![a](https://a.example/x.png)") == [
        ["a", ["a"], {"href": "https://a.example/x.png"}]
    ]
    assert inline("![](https://a.example/x.png)")[0][1] == ["https://a.example/x.png"]
    assert inline("[![a](https://a.example/x.png)](https://b.example)") == [
        ["a", ["a"], {"href": "https://b.example"}]
    ]


def test_the_caller_decides_which_images_are_its_own():
    [block] = parse("![a](/x.png)", is_own_file="/x.png".__eq__)
    assert block.children == [Element("img", [], {"src": "/x.png", "alt": "a"})]


# Code


def test_code_is_highlighted_with_classes_of_pygments():
    [[_, [[_, nodes, attributes]], _]] = as_json("```py\ndef f():\n    return 'a'  # b\n```")
    assert attributes == {"language": "py"}
    assert nodes[:3] == [["span", ["def"], {"class": "k"}], " ", ["span", ["f"], {"class": "nf"}]]
    assert nodes[-1] == ["span", ["# b"], {"class": "c1"}]


SAMPLE = "\n\tdef f(x): /* a */ return \"b\" + 'c' -- 1.5e3 # <d> ${e} @g \ufeff\x00é \n\n"


@pytest.mark.parametrize("name", sorted([*LANGUAGES, *ALIASES]))
def test_highlighting_changes_no_text_and_uses_standard_classes(name):
    nodes = highlight(SAMPLE, name.upper())
    assert text_of(nodes) == SAMPLE
    spans = [node for node in nodes if isinstance(node, Element)]
    assert {(span.tag, *span.attributes) for span in spans} <= {("span", "class")}
    assert {span.attributes["class"] for span in spans} <= set(STANDARD_TYPES.values())


def test_every_language_has_a_lexer_that_finds_something():
    codes = (SAMPLE, "- a: 1\n+ b\n# c\n", "GET / HTTP/1.1\nA: b\n\n", "$ ls\n>>> 1\n")
    plain = {name for name in LANGUAGES if all(highlight(c, name) == [c] for c in codes)}
    assert plain == set()
    assert set(ALIASES.values()) <= LANGUAGES


@pytest.mark.parametrize("name", [None, "", "klingon", "guess", "text", "../x", "brainfuck"])
def test_unknown_languages_are_plain(name):
    assert highlight("def f(): 1", name) == ["def f(): 1"]


def test_code_that_begins_with_a_byte_order_mark_is_plain():
    """Pygments drops the mark."""
    assert highlight("\ufeffreturn 1", "python") == ["\ufeffreturn 1"]


@pytest.mark.parametrize(
    ("unit", "count"),
    [("x=1;\n", MAX_CODE // 5), ("1,", MAX_CODE_LINE // 2), ("a\n", MAX_CODE_RUN // 2)],
)
def test_code_beyond_a_limit_is_plain(unit, count):
    assert len(highlight("1;" + unit * (count - 2), "python")) > 1
    assert len(highlight("1;" + unit * (count + 1), "python")) == 1


def test_names_in_a_row_are_plain_where_lexers_look_for_declarations():
    code = "x = 1;\n" + "a[] $b<c>\n" * 14 + ";"
    assert len(highlight(code, "python")) > 1
    assert len(highlight(code, "java")) > 1
    assert highlight(code.replace(";", "\na.b\n"), "java") == [code.replace(";", "\na.b\n")]


# Limits


def depth(node):
    return 0 if isinstance(node, str) else 1 + max(map(depth, node.children), default=0)


@pytest.mark.parametrize("marker", ["> ", "- ", "1. ", "> - "])
def test_deep_nesting_is_plain_text(marker):
    [deep] = parse(marker * 60 + "a")
    assert deep == Element("p", [marker * 60 + "a"], {"class": "plain"})
    [fine] = parse(marker * 5 + "a")
    assert fine.tag != "p"
    for count in range(60):
        [block] = parse(marker * count + "a")
        assert depth(block) <= MAX_DEPTH
        assert "a" in str(block)


def test_a_block_beyond_the_limit_is_plain_text():
    line = "*a* b c d\n"
    [fits] = parse(line * (MAX_BLOCK // len(line)))
    assert fits.attributes == {}
    first, second = parse(line * (MAX_BLOCK // len(line) + 10))
    assert first.attributes == {"class": "plain"}
    assert second == parse(line * 10)[0]


def test_many_brackets_are_text():
    link = "[a](https://a.example) "
    assert len(inline(link * MAX_BRACKETS)) == 2 * MAX_BRACKETS - 1
    assert inline(link * (MAX_BRACKETS + 1)) == [(link * (MAX_BRACKETS + 1)).strip()]


def test_a_table_with_many_columns_is_text():
    def table(columns):
        return "|a" * columns + "|\n" + "|-" * columns + "|\n"

    assert parse(table(MAX_COLUMNS))[0].tag == "table"
    assert parse(table(MAX_COLUMNS + 1))[0].tag == "p"


def test_a_table_ends_where_it_is_too_long_or_lacks_too_many_cells():
    head = "|a|b|c|d|e|f|g|h|i|j|\n" + "|-" * 10 + "|\n"
    full = "|1" * 10 + "|\n"
    [fits] = parse(head + full * MAX_ROWS)
    assert len(fits.children[1].children) == MAX_ROWS
    assert [each.tag for each in parse(head + full * (MAX_ROWS + 1))] == ["table", "p"]
    few = MAX_MISSING // 9
    assert [each.tag for each in parse(head + "|\n" * few)] == ["table"]
    assert [each.tag for each in parse(head + "|\n" * (few + 9))] == ["table", "p"]
