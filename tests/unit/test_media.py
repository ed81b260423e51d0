"""`recognize`: every type by its bytes; damaged and hostile files are read in bounds, and end."""

from __future__ import annotations

import io
import struct
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from hermes.media import EXTENSIONS, UNKNOWN, Media, extension_of, recognize
from tests.support.attachments import png
from tests.support.examples import examples
from tests.support.media_samples import (
    SAMPLES,
    adts_frame,
    archive,
    gif,
    id3,
    jpeg,
    mp3_frame,
    mp4,
    ogg_page,
)

IDS = [f"{kind}-{number}" for number, (kind, *_) in enumerate(SAMPLES)]
MOST_BYTES = 800_000
TEXT, NOTHING = Media("text/plain"), Media()


class Counted(io.BytesIO):
    """Counts what is read."""

    def __init__(self, data):
        super().__init__(data)
        self.seen = Counter()

    def read(self, size=-1):
        data = super().read(size)
        self.seen.update(calls=1, bytes=len(data))
        return data


def seen(data):
    return recognize(io.BytesIO(data))


@pytest.mark.parametrize(("kind", "width", "height", "data"), SAMPLES, ids=IDS)
def test_a_type_is_recognized_by_its_bytes(kind, width, height, data):
    assert seen(data) == Media(kind, width, height)


@pytest.mark.parametrize(("kind", "width", "height", "data"), SAMPLES, ids=IDS)
def test_a_file_object_may_stand_anywhere(kind, width, height, data):
    file = io.BytesIO(data)
    file.seek(0, 2)
    assert recognize(file).media_type == kind


@pytest.mark.parametrize(
    "text",
    [
        "<html><script>alert(1)</script></html>",
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"></svg>',
        '{"a": 1}',
        "#!/bin/sh\n",
        "BMW and BMP",
        "ID3 is a tag",
        "RIFF of a guitar",
        "ftyp",
        "PK",
        "fLaC is a codec",
        "\ufeffhellö ☃ 😀",
        "x",
    ],
)
def test_texts_of_all_kinds_are_plain_texts(text):
    assert seen(text.encode()) == TEXT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text with a \0",
        "latin ä".encode("latin-1"),
        "utf-16".encode("utf-16"),
        b"\xed\xa0\x80",  # a surrogate
        b"\xc0\x80",  # too long
        "cut ☃".encode()[:-1],
        mp3_frame(),  # a single frame
        mp3_frame() + b"no second frame" + bytes(500),
        b"\x00" + mp3_frame() * 2,
        adts_frame(),
        id3(2000, b"\xff"),
        b"BM" + bytes(60),
        b"\x1a\x45\xdf\xa3" + bytes(50),
        b"\x1f\x8b\x07",
    ],
)
def test_what_is_not_certain_is_unknown(data):
    assert seen(data) == NOTHING


@pytest.mark.parametrize("size", [262_143, 262_144, 262_145, 600_000])
@pytest.mark.parametrize("character", ["ä", "☃", "😀"])
def test_a_character_at_the_border_of_a_chunk_is_text(size, character):
    encoded = character.encode()
    for before in range(len(encoded) + 1):
        text = b"x" * (size - before) + encoded + b"end"
        assert seen(text) == TEXT
        assert seen(text + b"\xff") == NOTHING
        assert seen(text + b"\0") == NOTHING
        assert seen(text + encoded[:-1]) == NOTHING


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(0, 5), "image/png"),
        (png()[:20], "image/png"),
        (gif(0, 0), "image/gif"),
        (gif()[:7], "image/gif"),
        (jpeg(0, 0), "image/jpeg"),
        (jpeg()[:6], "image/jpeg"),
        (b"\xff\xd8\xff\xda", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WEBPABCD", "image/webp"),
        (mp4(b"avif"), "image/avif"),
    ],
)
def test_an_image_without_a_readable_size_has_none(data, kind):
    assert seen(data) == Media(kind)


def test_the_size_of_a_huge_image_is_known_without_decoding_it():
    assert seen(png(2**31, 2**31)) == Media("image/png", 2**31, 2**31)


# Hostile files


HOSTILE = {
    "JPEG segments without an end": b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200_000,
    "JPEG fill bytes": b"\xff\xd8" + b"\xff" * 500_000,
    "JPEG segments of length 0": b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000,
    "Ogg pages without an end": ogg_page(b"") * 20_000,
    "an ID3 tag of 256 MB": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(100_000),
    "zeros after an ID3 tag": id3(10, bytes(500_000)),
    "MPEG syncs": id3(10, b"\xff\xfb" * 100_000),
    "a ZIP directory at its own end": b"PK\x03\x04" + bytes(30) + b"PK\x05\x06" + b"\xff" * 18,
    "a ZIP directory with empty names": b"PK\x03\x04"
    + (b"PK\x01\x02" + bytes(42)) * 20_000
    + b"PK\x05\x06" + bytes(12) + struct.pack("<IH", 4, 0),
    "many ZIP entries": archive(*(f"{n}.txt" for n in range(5000))),
    "an endless brand list": b"\xff\xff\xff\xffftypisom" + b"isom" * 100_000,
    "many image sizes": mp4(b"heic", rest=b"\0\0\0\x14ispe" * 10_000),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_read_in_bounds(case):
    file = Counted(HOSTILE[case])
    assert recognize(file).media_type in EXTENSIONS
    assert file.seen["bytes"] < MOST_BYTES
    assert file.seen["calls"] < 1000


def test_only_a_text_is_read_to_its_end():
    for _, _, _, data in SAMPLES[:-2]:
        file = Counted(data + b"\xff" * 5_000_000)
        recognize(file)
        assert file.seen["bytes"] < MOST_BYTES
    file = Counted(b"text " * 1_000_000)
    assert recognize(file) == TEXT
    assert file.seen["bytes"] >= 5_000_000


def check(data):
    file = Counted(data)
    found = recognize(file)
    assert found.media_type in EXTENSIONS
    assert (found.width is None) == (found.height is None)
    assert found.width is None or (found.width > 0 and found.height > 0)
    assert file.seen["bytes"] < MOST_BYTES + len(data)
    return found


@given(st.binary(max_size=300))
@examples(500)
def test_any_bytes_have_a_type(data):
    check(data)


@given(st.sampled_from(SAMPLES), st.binary(max_size=60))
@examples(500)
def test_any_bytes_after_a_known_beginning_have_a_type(sample, data):
    check(sample[3][:12] + data)


@given(st.sampled_from(SAMPLES), st.integers(0, 2000))
@examples(500)
def test_a_truncated_file_has_a_type(sample, size):
    check(sample[3][:size])


@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 700), st.binary(min_size=1, max_size=4)), max_size=4),
)
@examples(1000)
def test_a_file_with_changed_bytes_has_a_type(sample, changes):
    data = bytearray(sample[3])
    for at, replaced in changes:
        place = at % max(1, len(data))
        data[place : place + len(replaced)] = replaced
    check(bytes(data))


# Extensions


def test_every_type_has_one_extension():
    assert len(set(EXTENSIONS.values())) == len(EXTENSIONS)
    assert all(each.startswith(".") and each[1:].isalnum() for each in EXTENSIONS.values())
    assert (extension_of("image/jpeg"), extension_of("text/plain")) == (".jpg", ".txt")
    assert extension_of(UNKNOWN) == extension_of("text/html") == extension_of("") == ".bin"
