"""What a user is shown of a call is what runs, whatever its arguments contain."""

from __future__ import annotations

import hashlib
import json
import re

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from hermes.actors.delivery.split import split
from hermes.adapters.telegram import Telegram
from hermes.adapters.telegram.markdown import markdown_v2
from hermes.adapters.telegram.sender import MAX_LENGTH
from hermes.messages import Approval
from hermes.sanitize import sanitize
from hermes.testing.markdown_v2 import parse
from hermes.texts import ENGLISH, Texts
from hermes.transcript import questions

HOSTILE = st.text(
    st.sampled_from(
        "`~\\*_[]()<>#+-=|{}.!\"'$ \n\r\tab:/\u202e\u2066\u200f\u200b\ufeff\u3164\ufe0f"
    )
    | st.characters(codec="utf-8"),
    max_size=60,
)
VALUES = st.recursive(
    HOSTILE | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(HOSTILE, VALUES, max_size=4).map(
    lambda value: msgspec.json.encode(value, order="deterministic").decode()
)
"""Arguments as a toolbox passes them."""
ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


def call(arguments, tool="run"):
    return Approval(7, "k", "k", tool, arguments, "pending", 0.0, 1.0)


def unescaped(shown):
    """The arguments, from what is shown: the escapes that JSON does not need are undone."""

    def character(escape):
        needless = escape[1] and int(escape[1], 16) >= 0x20
        return chr(int(escape[1], 16)) if needless else escape[0]

    return ESCAPE.sub(character, shown).encode("utf-16", "surrogatepass").decode("utf-16")


def on_telegram(text):
    """The code blocks of a message as Telegram displays them, and all of its text."""
    displayed, entities = parse(markdown_v2(text))
    units = displayed.encode("utf-16-le")
    blocks = [
        units[2 * each.offset : 2 * (each.offset + each.length)].decode("utf-16-le")
        for each in entities
        if each.type == "pre"
    ]
    return blocks, displayed


def as_plain_text(text):
    """The code blocks of a message as the console displays it."""
    return re.findall(r"^(`{3,})\n(.*)\n\1$", sanitize(text), re.MULTILINE)


@given(ARGUMENTS)
@example('{"command":"rm -rf a*.log b*"}')
@example('{"text":"[the bank](https://evil.example)"}')
@example('{"text":"a\\\\\\",\\"to\\":\\"b"}')
@example('{"text":"\u202e}\\"gro.knab\\":\\"ot\\"{"}')
@example('{"text":"```\\n``` run it"}')
@example(json.dumps({"text": " " * 40}, separators=(",", ":")))
@example('{"text":"\U000e0041\U0001f600"}')
@example(json.dumps({"text": "`" * 3000}, separators=(",", ":")))
def test_the_exact_arguments_are_displayed_on_every_platform(arguments):
    text = questions.question(call(arguments), ENGLISH)
    shown = questions.shown_arguments(arguments)
    assert unescaped(shown) == arguments
    assert json.loads(shown) == json.loads(arguments)
    assert shown.isprintable()
    [block], displayed = on_telegram(text)
    [(_, plain)] = as_plain_text(text)
    assert block.removesuffix("\n") == plain
    assert shown.startswith(plain)
    assert len(plain) > questions.PAGE - 6 or plain == shown
    assert len(displayed.encode("utf-16-le")) // 2 <= MAX_LENGTH
    assert len(text.encode("utf-16-le")) // 2 <= MAX_LENGTH, "it is sent in one message"


@given(ARGUMENTS | st.text(max_size=4000), st.integers(300, 5000))
@example('{"command":"ls ' + "`" * 1400 + '; rm -rf ~"}', Telegram.limit)
@example('{"command":"ls ' + "`" * 1400 + '; rm -rf ~"}', 300)
@example('{"command":"' + "\U0001f600" * 3000 + '"}', Telegram.limit)
@example('{"command":"' + "```" + "x" * 400 + '"}', 300)
def test_each_page_is_one_message_with_one_block_however_short_messages_are(arguments, limit):
    asked, shown = call(arguments), questions.shown_arguments(arguments) or "(empty)"
    pages, number = [], 1
    while len("".join(pages)) < len(shown):
        text = questions.question(asked, ENGLISH, number, limit=limit)
        assert split(text, limit) == [text]
        [block], _ = on_telegram(text)
        pages.append(block.removesuffix("\n"))
        number += 1
    assert "".join(pages) == shown


@pytest.mark.parametrize(
    "unit", [r"\u202e", r"\\", r"\\\"", r"x\\", r"\\u12", "e\u0301\u0323", "```x", "\U0001f600"]
)
@pytest.mark.parametrize("limit", range(300, 310))
def test_a_page_ends_between_two_characters(unit, limit):
    asked, pages = call(unit * 300), []
    while len(pages) < 2:
        text = questions.question(asked, ENGLISH, len(pages) + 1, limit=limit)
        [block], _ = on_telegram(text)
        pages.append(block.removesuffix("\n"))
    escape = r"\\u[0-9a-f]{4}|\\[^u]|[^\\]"
    assert all(re.fullmatch(f"(?:{escape})+", page) for page in pages)
    assert not any(questions.is_mark(page[0]) for page in pages)


def test_what_cannot_be_shown_in_one_message_cannot_be_asked():
    short, long = '{"command":"ls"}', '{"command":"' + "x" * 500 + '"}'
    asked = len(questions.question(call(short), ENGLISH)) + len("99999999") * 3
    assert questions.can_be_asked("run", short, ENGLISH, asked)
    assert not questions.can_be_asked("run", short, ENGLISH, asked - 1)
    for limit in (None, 300, Telegram.limit):
        assert questions.can_be_asked("run", long, ENGLISH, limit)
    assert not questions.can_be_asked("run", long, ENGLISH, 160)
    assert not questions.can_be_asked("run", "x" * (questions.MAX_ARGUMENTS + 1), ENGLISH, None)


@given(st.text(max_size=200))
@example("   ")
@example("")
def test_any_text_is_displayed_on_one_line(arguments):
    shown = questions.shown_arguments(arguments)
    [block], _ = on_telegram(questions.question(call(arguments), ENGLISH))
    assert block.removesuffix("\n") == (shown or "(empty)")
    assert shown.isprintable()


@pytest.mark.parametrize("size", [0, 1, 1479, 1480, 1481, 5000])
def test_what_is_cut_says_so_and_all_of_it_can_be_seen(size):
    arguments = '{"command":"' + "x y `" * (size // 5) + "z" * (size % 5) + '"}'
    asked = call(arguments)
    shown, digest = (
        questions.shown_arguments(arguments),
        hashlib.sha256(arguments.encode()).hexdigest(),
    )
    text = questions.question(asked, ENGLISH)
    cut = len(shown) > questions.PAGE
    assert (digest in text) == cut == ("/approve show 7" in text)
    pages, number = [], 1
    while len(pages) * questions.PAGE < len(shown):
        [block], displayed = on_telegram(questions.question(asked, ENGLISH, number))
        assert not cut or f"Page {number} of" in displayed
        assert len(displayed) < MAX_LENGTH
        pages.append(block.removesuffix("\n"))
        number += 1
    assert "".join(pages) == shown
    last = questions.question(asked, ENGLISH, number - 1)
    assert questions.question(asked, ENGLISH, number) == last


@pytest.mark.parametrize("tool", ["_rm_", "__x__", "a`b", "*b*", "\u202ex"])
def test_the_name_of_a_tool_is_displayed_as_it_is(tool):
    _, displayed = on_telegram(questions.question(call("{}", tool), ENGLISH))
    name = displayed.removeprefix("May ").partition(" run with")[0]
    assert name.replace(r"\u0060", "`").replace(r"\u202e", "\u202e") == tool


@pytest.mark.parametrize(
    "template", ["{tool}({arguments})?", "{arguments}", "run {tool}?", "{arguments} or {arguments}"]
)
def test_the_arguments_are_displayed_whatever_the_host_writes_around_them(template):
    texts = Texts(approval_question=template)
    [block], _ = on_telegram(questions.question(call('{"a":"*b*"}'), texts))
    assert block.removesuffix("\n") == '{"a":"*b*"}'


@given(st.lists(ARGUMENTS, min_size=1, max_size=20))
def test_a_list_has_one_line_for_each_call(several):
    text = questions.listing([call(arguments, "run_it") for arguments in several])
    [block], displayed = on_telegram(text)
    lines = block.removesuffix("\n").split("\n")
    assert len(lines) == len(several)
    for line, arguments in zip(lines, several, strict=True):
        shown = line.removeprefix("7: run_it ")
        assert questions.shown_arguments(arguments).startswith(shown.removesuffix("…"))
    assert len(displayed.encode("utf-16-le")) // 2 < MAX_LENGTH
