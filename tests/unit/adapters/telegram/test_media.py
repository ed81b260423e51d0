"""Which file of a message is downloaded, and under which name."""

from __future__ import annotations

import pytest

from hermes.adapters.telegram.bot_api_types import File, Media
from hermes.adapters.telegram.media import file_of, label_of
from hermes.adapters.telegram.upload import MAX_PHOTO, fields_for
from hermes.messages import StoredFile

SIZES = [
    File("small", width=90, height=60, file_size=1_000),
    File("large", width=1280, height=853, file_size=200_000),
    File("medium", width=320, height=213, file_size=20_000),
]


@pytest.mark.parametrize(
    ("limit", "best"), [(10**9, "large"), (199_999, "medium"), (20_000, "medium"), (1_000, "small")]
)
def test_the_largest_photo_within_the_limit_is_downloaded(limit, best):
    file, note = file_of(Media(photo=SIZES), limit)
    assert (file.file_id, file.name, note) == (best, "photo.jpg", "")


def test_a_photo_of_unknown_size_is_downloaded():
    file, _ = file_of(Media(photo=[File("a", width=9, height=9), File("b", width=8, height=9)]), 5)
    assert (file.file_id, file.size) == ("a", None)


def test_a_photo_that_is_too_large_in_every_size_is_named():
    assert file_of(Media(photo=SIZES), 999) == (None, "[photo, 1 kB: it is too large]")


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("document", {"file_name": "a.tar.gz", "mime_type": "application/pdf"}, "a.tar.gz"),
        ("document", {"mime_type": "application/pdf"}, "document.pdf"),
        ("document", {}, "document"),
        ("voice", {"mime_type": "audio/ogg"}, "voice.ogg"),
        ("audio", {"mime_type": "audio/x-m4a"}, "audio.m4a"),
        ("audio", {}, "audio.mp3"),
        ("video", {}, "video.mp4"),
        ("video_note", {}, "video.mp4"),
        ("sticker", {}, "sticker.webp"),
        ("animation", {}, "animation.mp4"),
    ],
)
def test_a_file_has_the_name_of_its_sender_or_that_of_its_kind(kind, fields, name):
    file, _ = file_of(Media(**{kind: File("f", **fields)}))
    assert file.name == name


def test_an_animation_is_not_downloaded_as_a_document_too():
    both = Media(animation=File("a"), document=File("d"))
    assert file_of(both)[0].file_id == "a"


def test_video_stickers_are_only_named():
    sticker = Media(sticker=File("s", emoji="😀", is_video=True))
    assert file_of(sticker) == (None, "[sticker 😀: it is animated]")


def test_the_label_names_the_kind_and_the_file():
    assert label_of(Media(document=File("d", file_name="a.pdf", file_size=5))) == "[document a.pdf]"
    assert label_of(Media(photo=SIZES)) == "[photo]"
    assert label_of(Media()) == ""


@pytest.mark.parametrize(
    ("media_type", "fields", "sent_as"),
    [
        ("image/jpeg", {}, ["photo", "document"]),
        ("image/png", {"width": 5000, "height": 5000}, ["photo", "document"]),
        ("image/png", {"width": 5000, "height": 5001}, ["document"]),
        ("image/webp", {"width": 21, "height": 1}, ["document"]),
        ("image/jpeg", {"size": MAX_PHOTO}, ["photo", "document"]),
        ("image/jpeg", {"size": MAX_PHOTO + 1}, ["document"]),
        ("image/gif", {}, ["document"]),
        ("audio/ogg", {}, ["voice", "document"]),
        ("audio/mpeg", {}, ["audio", "document"]),
        ("audio/wav", {}, ["document"]),
        ("application/pdf", {}, ["document"]),
    ],
)
def test_a_file_is_sent_as_what_it_is(media_type, fields, sent_as):
    assert fields_for(StoredFile(**{"id": "f", "size": 9, **fields}, media_type=media_type)) == (
        sent_as
    )
