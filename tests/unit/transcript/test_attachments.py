"""Attached files in words: descriptions, references, and the files that a summary replaces."""

from __future__ import annotations

import pytest

from hermes.messages import Message
from hermes.transcript.attachments import (
    MAX_REFERENCES,
    check_part,
    describe,
    is_attachment,
    readable_size,
    readable_text,
    reference,
    with_references,
)
from hermes.transcript.compaction import compacted, plan
from tests.support.model_files import file_id
from tests.support.transcripts import reply, user


def part(number, **fields):
    return {"type": "image", "file": file_id(number), "name": f"{number}.png", "size": 12_345,
            "media_type": "image/png", **fields}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (12_345, "12.3 kB"), (5 * 10**9, "5 GB")],
)
def test_sizes_are_readable(size, text):
    assert readable_size(size) == text


def test_a_part_is_described_with_its_name_size_and_reason():
    assert describe(part(1)) == "[image 1.png, 12.3 kB]"
    assert describe(part(1), "why") == "[image 1.png, 12.3 kB: why]"
    assert describe({"type": "image", "url": "https://a/b"}) == "[image https://a/b]"
    assert reference(part(1)) == f"[image 1.png, 12.3 kB: {file_id(1)}]"


@pytest.mark.parametrize("kind", [["image"], {"a": 1}, None, 3])
def test_a_part_of_an_odd_type_is_left_to_the_provider(kind):
    odd = {"type": kind, "path": "x"}
    check_part(odd)
    assert not is_attachment(odd)


def test_a_message_is_readable_without_json():
    text, odd = {"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}
    voice = part(2, type="audio", name="v.ogg", text="hello")
    message = Message("user", "look", parts=(text, part(1), odd, voice))
    assert (
        readable_text(message) == "look hi [image 1.png, 12.3 kB] (image_url) [audio v.ogg] hello"
    )
    assert file_id(1) in readable_text(message, reference)
    assert readable_text(Message("user", None)) == ""


@pytest.mark.parametrize("name", ["scan[1].png", "a]b.png", "[x", "a: file_b].png", None])
def test_a_reference_is_kept_whatever_the_name_of_the_file_is(name):
    rows = [Message("user", "a", parts=(part(1, name=name), part(2)))]
    first = with_references("It began.", rows, None)
    second = with_references("It went on.", [], f"{first} and {reference(part(3))}")
    expected = [reference(part(1, name=name)), reference(part(2)), reference(part(3))]
    assert second.splitlines()[3:] == expected


def test_a_summary_names_the_files_that_it_replaces():
    """Once each, with those of the summary before."""
    first = with_references("It began.", [Message("user", "a", parts=(part(1), part(1)))], None)
    assert first == f"It began.\n\nFiles:\n{reference(part(1))}"
    rows = [Message("user", None, parts=(part(2),)), Message("tool", "x", parts=(part(3),))]
    second = with_references(f"Then {file_id(3)} came.", rows, first)
    assert second.splitlines()[2:] == ["Files:", reference(part(1)), reference(part(2))]
    assert with_references("text", [user("a")], None) == "text"


def test_a_summary_names_the_latest_files_if_there_are_many():
    rows = [Message("user", "a", parts=(part(number),)) for number in range(100)]
    lines = with_references("s", rows, None).splitlines()[3:]
    assert lines == [reference(part(number)) for number in range(100 - MAX_REFERENCES, 100)]


def test_a_compacted_transcript_keeps_the_parts_of_its_tail():
    rows = []
    for number in range(6):
        rows += [Message("user", "word " * 400, parts=(part(number),)), reply("ok")]
    made = plan(rows, tail_tokens=1_000, protect_first=0)
    child = compacted(made, "They talked.")
    replaced = [row for row in made.middle if row.parts]
    assert len(replaced) == 5
    assert [line for line in child[0].content.splitlines() if "file_" in line] == [
        reference(row.parts[0]) for row in replaced
    ]
    assert child[1:] == made.tail
    assert child[-2].parts == (part(5),)
