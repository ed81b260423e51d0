"""Titles as models write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.actors.auto_title import LENGTH, shorten
from hermes.store.conversations.titles import sanitize_title


@given(st.text())
def test_any_text_is_shortened_to_one_line(text):
    title = shorten(text)
    assert len(title) <= LENGTH
    assert sanitize_title(title) is None or len(sanitize_title(title)) <= LENGTH
    assert shorten(title) == shorten(shorten(title))


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("**Of the sea**", "Of the sea"),
        ("\n\n# Title: 'Of the sea'.", "Of the sea"),
        ("Trains: a history", "Trains: a history"),
        ("word " * 40, "word " * 15 + "word…"),
        (" \n ", ""),
    ],
)
def test_markup_and_labels_are_removed(said, title):
    assert shorten(said) == title
