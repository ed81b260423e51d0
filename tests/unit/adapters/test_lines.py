"""Splitting bytes into lines."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from hermes.adapters.lines import LineSplitter, TooLong
from tests.support.text_strategies import chunks


@given(chunks(st.binary() | st.text("ab\r\n\xe9").map(str.encode)))
@example((b"a\r\nb", [b"a\r", b"\nb"]))
@example((b"123456789\nok", [b"1234", b"56789", b"\nok"]))
@example((b"12345678\r\nok", [b"12345678\r", b"\nok"]))
def test_lines_do_not_depend_on_how_the_bytes_are_cut(pieces):
    whole, parts = pieces
    splitter = LineSplitter(8)
    lines = [line for part in parts for line in splitter.feed(part)] + splitter.end()
    wanted = whole.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    assert len(lines) == len(wanted)
    for line, raw in zip(lines, wanted, strict=True):
        raw = raw.removesuffix(b"\r")  # noqa: PLW2901
        if len(raw) > 8:
            assert isinstance(line, TooLong)
        else:
            assert line == raw


def test_an_endless_line_takes_no_memory():
    splitter = LineSplitter(1000)
    for _ in range(100):
        assert splitter.feed(b"x" * 1000) == []
        assert len(splitter._partial) <= 1001
    skipped, line = splitter.feed(b"\nshort\n")
    assert isinstance(skipped, TooLong)
    assert line == b"short"


def test_a_long_line_at_the_end_of_the_input_is_skipped_too():
    splitter = LineSplitter(3)
    assert splitter.feed(b"12345") == []
    [skipped] = splitter.end()
    assert isinstance(skipped, TooLong)
    assert splitter.end() == []
