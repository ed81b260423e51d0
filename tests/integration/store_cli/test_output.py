"""Formatting of the output."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from hermes import sanitize
from hermes.store.cli.output import escape_json, format_size, format_time, json_line


@given(st.text())
def test_escaped_json_has_the_same_value(text):
    line = json_line({"text": text})
    assert json.loads(line) == {"text": text}
    assert line.isascii()
    assert line.isprintable()
    raw = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(escape_json(raw)) == {"text": text}
    assert not sanitize.UNSAFE.search(escape_json(raw))


def test_sizes_and_times_are_readable():
    assert [format_size(n) for n in (0, 1023, 1024, 1536, 5 * 1024**3, 2**60)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "1048576.0 TiB",
    ]  # fmt: skip
    assert [format_time(time) for time in (None, 1e300, float("nan"))] == ["", "1e+300", "nan"]
