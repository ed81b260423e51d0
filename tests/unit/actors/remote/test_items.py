"""Lists of events in their shortest form."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.actors.remote.frames import Item
from hermes.actors.remote.items import Items, missing
from hermes.events import ReasoningDelta, Retrying, TextDelta

TEXTS = st.text("ab", min_size=1, max_size=4)
EVENTS = st.one_of(
    st.builds(TextDelta, TEXTS, st.just(value=False) | st.booleans()),
    st.builds(ReasoningDelta, TEXTS),
    st.builds(Retrying, st.just(1.0), TEXTS),
)
ITEMS = st.lists(st.builds(Item, st.sampled_from([1, 2]), EVENTS), max_size=12)


def cut(data: st.DataObject, items: list[Item]) -> list[Item]:
    """Return the same events with their texts cut elsewhere."""
    pieces = []
    for item in items:
        if isinstance(item.event, Retrying) or getattr(item.event, "restart", False):
            pieces.append(item)
            continue
        at = data.draw(st.integers(1, len(item.event.text)))
        parts = [part for part in (item.event.text[:at], item.event.text[at:]) if part]
        pieces += [Item(item.turn_id, type(item.event)(part)) for part in parts]
    return pieces


@given(items=ITEMS, data=st.data())
def test_the_shortest_form_does_not_depend_on_how_texts_were_cut(items, data):
    assert [*Items(items)] == [*Items(cut(data, items))]


@given(items=ITEMS, data=st.data())
def test_what_is_missing_completes_every_beginning(items, data):
    pieces = cut(data, items)
    seen = pieces[: data.draw(st.integers(0, len(pieces)))]
    rest = missing([*Items(seen)], [*Items(items)])
    assert rest is not None
    assert [*Items([*seen, *rest])] == [*Items(items)]


@given(items=ITEMS, other=ITEMS)
def test_nothing_is_missing_to_something_else(items, other):
    rest = missing([*Items(other)], [*Items(items)])
    if rest is not None:
        assert [*Items([*other, *rest])] == [*Items(items)]


def test_the_text_after_a_restart_is_not_joined_to_it():
    items = [Item(1, TextDelta("a", restart=True)), Item(1, TextDelta("b"))]
    assert [*Items(items)] == items
