"""The MarkdownV2 parser refuses what Telegram refuses."""

from __future__ import annotations

import pytest

from hermes.testing.markdown_v2 import CannotParse, parse


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a.b", "Character '.' is reserved"),
        ("a!", "Character '!' is reserved"),
        ("a > b", "Character '>' is reserved"),
        ("x|y", "Character '|' is reserved"),
        ("(x)", r"Character '\(' is reserved"),
        ("*a", "Can't find end of bold entity at byte offset 0"),
        ("é _a", "Can't find end of italic entity at byte offset 3"),
        ("[a](b", "Can't find end of a URL"),
        ("```a`", "is reserved"),
        (">*a\nb", "Can't find end of bold entity at byte offset 1"),
    ],
)
def test_the_parser_refuses_what_telegram_refuses(text, why):
    with pytest.raises(CannotParse, match=why):
        parse(text)
