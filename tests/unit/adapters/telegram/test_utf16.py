"""Slices by UTF-16 code units."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.adapters.telegram.utf16 import extract, remove


@given(st.text(), st.integers(-3, 20), st.integers(-3, 20))
def test_spans_are_counted_in_utf16_code_units(text, offset, size):
    units = text.encode("utf-16-le", "surrogatepass")
    found = extract(text, offset, size)
    left = remove(text, [(offset, size)])
    inside = offset >= 0 and size > 0 and 2 * (offset + size) <= len(units)
    assert (len(left.encode("utf-16-le", "surrogatepass")) < len(units)) == inside
    assert bool(found) == inside
