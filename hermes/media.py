"""Recognize the type of a file by its bytes; names and headers are not trusted.

Only headers are read, at most a few hundred kilobytes of them, and nothing is decompressed. The
exception is a text, which is read to its end. What is damaged or unknown is `UNKNOWN`. JSON, HTML
and SVG are `text/plain`, so that nobody renders them.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, TypeAlias

import msgspec

UNKNOWN = "application/octet-stream"
TEXT = "text/plain"
_HEAD = 65536
_CHUNK = 262_144
_MAX_SEGMENTS = 500
_MAX_PAGES = 8
_MAX_PADDING = 4096
_MAX_DIRECTORY = 262_144
_MAX_COMMENT = 65_557  # the end record of a ZIP file, and its longest comment
_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCX = f"{_OFFICE}.wordprocessingml.document"
_XLSX = f"{_OFFICE}.spreadsheetml.sheet"
_PPTX = f"{_OFFICE}.presentationml.presentation"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"
EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/heic": ".heic",
    "image/heif": ".heif",
    "image/avif": ".avif",
    "application/pdf": ".pdf",
    "audio/ogg": ".ogg",
    "video/ogg": ".ogv",
    "application/ogg": ".ogx",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "audio/flac": ".flac",
    "audio/aac": ".aac",
    "audio/mp4": ".m4a",
    "video/mp4": ".mp4",
    "video/quicktime": ".mov",
    "audio/webm": ".weba",
    "video/webm": ".webm",
    "video/x-matroska": ".mkv",
    _DOCX: ".docx",
    _XLSX: ".xlsx",
    _PPTX: ".pptx",
    f"{_OPEN_DOCUMENT}.text": ".odt",
    f"{_OPEN_DOCUMENT}.spreadsheet": ".ods",
    f"{_OPEN_DOCUMENT}.presentation": ".odp",
    "application/epub+zip": ".epub",
    "application/zip": ".zip",
    "application/gzip": ".gz",
    TEXT: ".txt",
    UNKNOWN: ".bin",
}
"""The types that are recognized, each with its usual extension."""


class Media(msgspec.Struct, frozen=True):
    """The type of a file; `width` and `height` are those of an image."""

    media_type: str = UNKNOWN
    width: int | None = None
    height: int | None = None


def recognize(file: BinaryIO) -> Media:
    """Return the type of an open, seekable file. A file of an unknown type is `UNKNOWN`."""
    head = _read(file, 0, _HEAD)
    for recognizer in _RECOGNIZERS:
        if (found := recognizer(head, file)) is not None:
            return found
    return Media(TEXT) if head and _is_text(file) else Media()


def extension_of(media_type: str) -> str:
    """Return the usual extension of a type, such as `.png`; `.bin` if the type is unknown."""
    return EXTENSIONS.get(media_type, EXTENSIONS[UNKNOWN])


Recognizer: TypeAlias = Callable[[bytes, BinaryIO], Media | None]
"""Gets the beginning of a file and the file; returns None if it has another type."""


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _number(data: bytes, offset: int, size: int, *, little: bool = False) -> int:
    """Return a number in the data, 0 if the data is too short."""
    field = data[offset : offset + size]
    return int.from_bytes(field, "little" if little else "big") if len(field) == size else 0


def _image(kind: str, width: int, height: int) -> Media:
    """Return an image; its size is unknown if it has no area."""
    return Media(kind, width, height) if width > 0 and height > 0 else Media(kind)


# Images


def _png(head: bytes, _: BinaryIO) -> Media | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR":
        return None
    return _image("image/png", _number(head, 16, 4), _number(head, 20, 4))


def _gif(head: bytes, _: BinaryIO) -> Media | None:
    if not head.startswith((b"GIF87a", b"GIF89a")):
        return None
    sizes = (_number(head, at, 2, little=True) for at in (6, 8))
    return _image("image/gif", *sizes)


def _bmp(head: bytes, _: BinaryIO) -> Media | None:
    if not head.startswith(b"BM"):
        return None
    kind = _number(head, 14, 4, little=True)
    if kind == 12:  # the first version
        planes, fields = _number(head, 22, 2, little=True), head[18:22]
        width, height = struct.unpack("<HH", fields) if len(fields) == 4 else (0, 0)
    elif kind in {40, 52, 56, 64, 108, 124}:
        planes, fields = _number(head, 26, 2, little=True), head[18:26]
        width, height = struct.unpack("<ii", fields) if len(fields) == 8 else (0, 0)
    else:
        return None
    return _image("image/bmp", width, abs(height)) if planes == 1 else None


def _jpeg(head: bytes, file: BinaryIO) -> Media | None:
    """Find the first frame header; the rotation of a photo is ignored."""
    if not head.startswith(b"\xff\xd8\xff"):
        return None
    position = 2
    for _ in range(_MAX_SEGMENTS):
        segment = _read(file, position, 9)
        marker = _number(segment, 1, 1)
        if not segment.startswith(b"\xff") or marker in {0x00, 0xD9, 0xDA}:
            break  # no segment, or the image data begins
        if marker == 0xFF:  # a fill byte
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # they have no length
            position += 2
        elif 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return _image("image/jpeg", _number(segment, 7, 2), _number(segment, 5, 2))
        else:
            position += 2 + max(2, _number(segment, 2, 2))
    return Media("image/jpeg")


def _webp(head: bytes, _: BinaryIO) -> Media | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    match head[12:16]:
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            sizes = (_number(head, at, 2, little=True) & 0x3FFF for at in (26, 28))
        case b"VP8L" if head[20:21] == b"\x2f":
            bits = _number(head, 21, 4, little=True)
            sizes = (((bits >> shift) & 0x3FFF) + 1 for shift in (0, 14))
        case b"VP8X":
            sizes = (_number(head, at, 3, little=True) + 1 for at in (24, 27))
        case _:
            return Media("image/webp")
    return _image("image/webp", *sizes)


# Containers of images, audio and video


_HEIC = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_AUDIO_BRANDS = frozenset({b"M4A ", b"M4B ", b"M4P "})


def _mp4(head: bytes, _: BinaryIO) -> Media | None:
    """Recognize the family of MP4 by its brands."""
    if head[4:8] != b"ftyp":
        return None
    major, end = head[8:12], min(_number(head, 0, 4), 256)
    brands = {major, *(head[at : at + 4] for at in range(16, end, 4))}
    if brands & {b"avif", b"avis"}:
        return _image("image/avif", *_extent(head))
    if brands & _HEIC:
        return _image("image/heic", *_extent(head))
    if major in {b"mif1", b"msf1"}:
        return _image("image/heif", *_extent(head))
    if major in _AUDIO_BRANDS:
        return Media("audio/mp4")
    return Media("video/quicktime" if major == b"qt  " else "video/mp4")


def _extent(head: bytes) -> tuple[int, int]:
    """Return the largest size that an image of the HEIF family names: it may have tiles."""
    found = [
        (_number(head, each.end() + 4, 4), _number(head, each.end() + 8, 4))
        for each in re.finditer(rb"\0\0\0\x14ispe", head)
    ]
    return max(found, key=lambda sizes: sizes[0] * sizes[1], default=(0, 0))


def _matroska(head: bytes, _: BinaryIO) -> Media | None:
    """Recognize WebM and Matroska; sound alone only if its codec is the only one in the header."""
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return None
    document = re.search(rb"\x42\x82[\x84\x88](webm|matroska)", head[:128])
    if document is None:
        return None
    if document[1] != b"webm":
        return Media("video/x-matroska")
    sound = re.search(rb"A_(OPUS|VORBIS)", head) is not None
    return Media("audio/webm" if sound and b"V_" not in head else "video/webm")


def _ogg(head: bytes, file: BinaryIO) -> Media | None:
    """Recognize Ogg by the codecs that its first pages name."""
    if not head.startswith(b"OggS\0"):
        return None
    position, kinds = 0, set[str]()
    for _ in range(_MAX_PAGES):
        page = _read(file, position, 27 + 255 + 8)
        if not page.startswith(b"OggS") or not _number(page, 5, 1) & 2:
            break  # not the first page of a stream
        count = _number(page, 26, 1)
        data = page[27 + count :]
        if data.startswith(b"\x80theora"):
            kinds.add("video/ogg")
        elif data.startswith((b"OpusHead", b"\x01vorbis", b"\x7fFLAC", b"Speex   ")):
            kinds.add("audio/ogg")
        position += 27 + count + sum(page[27 : 27 + count])
    return Media(max(kinds, default="application/ogg"))  # video, if there is any


# Audio


def _wav(head: bytes, _: BinaryIO) -> Media | None:
    return Media("audio/wav") if head[:4] == b"RIFF" and head[8:12] == b"WAVE" else None


def _flac(head: bytes, _: BinaryIO) -> Media | None:
    is_flac = head.startswith(b"fLaC") and _number(head, 4, 4) & 0x7FFFFFFF == 34
    return Media("audio/flac") if is_flac else None


_MPEG_RATES = {
    (3, 3): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (3, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits per second by version (3 is MPEG-1) and layer (3 is layer I), as in the header."""
_SAMPLE_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


def _mpeg_audio(head: bytes, file: BinaryIO) -> Media | None:
    """Recognize MP3 and AAC by two frames in a row, after an ID3 tag or at the beginning."""
    start, padding = 0, 1
    is_tagged = head.startswith(b"ID3") and _number(head, 3, 1) in {2, 3, 4}
    if is_tagged and len(head) >= 10 and max(head[6:10]) < 0x80:
        size = sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
        start, padding = 10 + size + (10 if head[5] & 0x10 else 0), _MAX_PADDING
    data = _read(file, start, padding + 2 * 8192)
    if start and data.startswith(b"fLaC"):
        return Media("audio/flac")
    for at in range(min(padding, len(data))):
        for kind, length_of in (("audio/mpeg", _mpeg_length), ("audio/aac", _adts_length)):
            if (length := length_of(data, at)) and length_of(data, at + length):
                return Media(kind)
    return None


def _mpeg_length(data: bytes, at: int) -> int:
    """Return the length of the MPEG audio frame at an offset, 0 if there is none."""
    header = _number(data, at, 4)
    version, layer = (header >> 19) & 3, (header >> 17) & 3
    rate, sampling = (header >> 12) & 15, (header >> 10) & 3
    if header >> 21 != 0x7FF or version == 1 or not layer or rate in {0, 15} or sampling == 3:
        return 0
    rates = _MPEG_RATES.get((version, layer)) or _MPEG_RATES[2, 3 if layer == 3 else 2]
    bits, samples = rates[rate] * 1000, _SAMPLE_RATES[version][sampling]
    padding = (header >> 9) & 1
    if layer == 3:
        return (12 * bits // samples + padding) * 4
    half = layer == 1 and version != 3
    return (72 if half else 144) * bits // samples + padding


def _adts_length(data: bytes, at: int) -> int:
    """Return the length of the AAC frame at an offset, 0 if there is none."""
    header = _number(data, at, 7)
    if header >> 44 != 0xFFF or (header >> 41) & 3 or (header >> 34) & 15 > 12:
        return 0
    length = (header >> 13) & 0x1FFF
    return length if length >= 7 else 0


# Documents and archives


def _pdf(head: bytes, _: BinaryIO) -> Media | None:
    return Media("application/pdf") if head.startswith(b"%PDF-") else None


def _gzip(head: bytes, _: BinaryIO) -> Media | None:
    return Media("application/gzip") if head.startswith(b"\x1f\x8b\x08") else None


def _zip(head: bytes, file: BinaryIO) -> Media | None:
    """Recognize ZIP files, and documents by the names of their entries."""
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None
    if head[30:38] == b"mimetype" and _number(head, 8, 2) == 0:  # not compressed
        size = _number(head, 22, 4, little=True)
        start = 38 + _number(head, 28, 2, little=True)
        declared = head[start : start + min(size, 100)].decode(errors="replace")
        if declared in EXTENSIONS and declared.startswith((_OPEN_DOCUMENT, "application/epub")):
            return Media(declared)
    names = set(_names(file))
    for name, kind in (
        (b"word/document.xml", _DOCX),
        (b"xl/workbook.xml", _XLSX),
        (b"ppt/presentation.xml", _PPTX),
    ):
        if {name, b"[Content_Types].xml"} <= names:
            return Media(kind)
    return Media("application/zip")


def _names(file: BinaryIO) -> Iterator[bytes]:
    """Yield the names of the entries of a ZIP file, from the beginning of its directory."""
    size = file.seek(0, 2)
    tail = _read(file, max(0, size - _MAX_COMMENT), _MAX_COMMENT)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        return
    directory = _read(file, _number(tail, end + 16, 4, little=True), _MAX_DIRECTORY)
    position = 0
    while directory.startswith(b"PK\x01\x02", position):
        name, extra, comment = (
            _number(directory, position + at, 2, little=True) for at in (28, 30, 32)
        )
        yield directory[position + 46 : position + 46 + name]
        position += 46 + name + extra + comment


def _is_text(file: BinaryIO) -> bool:
    """Return whether the whole file is UTF-8 without null bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(0)
    try:
        while chunk := file.read(_CHUNK):
            if b"\0" in chunk:
                return False
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


_RECOGNIZERS: Final[tuple[Recognizer, ...]] = (
    _png, _jpeg, _gif, _webp, _bmp, _mp4, _pdf, _ogg, _wav, _flac, _matroska, _zip, _gzip,
    _mpeg_audio,
)  # fmt: skip
