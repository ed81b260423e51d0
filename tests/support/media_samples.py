"""Small files of every type that is recognized, made by hand from their specifications."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

from hermes.media import EXTENSIONS
from tests.support.attachments import png

OFFICE = "application/vnd.openxmlformats-officedocument"
OPEN_DOCUMENT = "application/vnd.oasis.opendocument"


def jpeg(width=640, height=480, *, marker=0xC0, before=b""):
    """A JPEG file with an EXIF segment, a comment and fill bytes before its frame header."""
    exif = b"\xff\xe1" + struct.pack(">H", 12) + b"Exif\0\0....."[:10]
    frame = struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    scan = b"\xff\xda\x00\x02" + b"image data" + b"\xff\xd9"
    return b"\xff\xd8" + exif + before + b"\xff\xff\xff" + bytes([marker]) + frame + scan


def gif(width=30, height=20):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20) + b"\x3b"


def riff(kind, chunks):
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + kind + chunks


def chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data


def webp(kind, width=300, height=200):
    if kind == b"VP8 ":
        data = b"\x10\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    elif kind == b"VP8L":
        data = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14)
    else:
        data = bytes(4) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return riff(b"WEBP", chunk(kind, data + bytes(20)))


def bmp(width=7, height=-5, *, old=False):
    header = struct.pack("<IHHHH", 12, width, abs(height), 1, 24) if old else struct.pack(
        "<IiiHH", 40, width, height, 1, 24
    ) + bytes(24)  # fmt: skip
    return b"BM" + struct.pack("<IHHI", 14 + len(header), 0, 0, 14 + len(header)) + header


def box(kind, data):
    return struct.pack(">I", 8 + len(data)) + kind + data


def mp4(major, *compatible, rest=b""):
    return box(b"ftyp", major + bytes(4) + b"".join(compatible)) + rest + box(b"mdat", bytes(30))


def ispe(width, height):
    return box(b"ispe", bytes(4) + struct.pack(">II", width, height))


def ogg_page(data, *, first=True, serial=1):
    lengths = bytes([255] * (len(data) // 255) + [len(data) % 255])
    header = b"OggS\0" + bytes([2 if first else 0]) + bytes(8) + struct.pack("<III", serial, 0, 0)
    return header + bytes([len(lengths)]) + lengths + data


def ogg(*codecs):
    first = b"".join(ogg_page(each + bytes(30), serial=n) for n, each in enumerate(codecs))
    return first + ogg_page(bytes(600), first=False)


def mp3_frame(header=0xFFFB9064, length=417):
    return struct.pack(">I", header) + bytes(length - 4)


def id3(size, data):
    packed = bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\x00\x00" + packed + bytes(size) + data


def adts_frame(length=200):
    header = 0xFFF << 44 | 1 << 40 | 1 << 38 | 4 << 34 | 2 << 30 | length << 13 | 0x7FF << 2
    return header.to_bytes(7, "big") + bytes(length - 7)


def matroska(document, codecs):
    header = b"\x42\x86\x81\x01\x42\x82" + bytes([0x80 | len(document)]) + document
    tracks = b"".join(b"\x86" + bytes([0x80 | len(each)]) + each for each in codecs)
    return b"\x1a\x45\xdf\xa3" + bytes([0x80 | len(header)]) + header + tracks + bytes(50)


def archive(*names, stored=None, comment=b""):
    """A ZIP file; `stored` is the content of a first entry with the name `mimetype`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        if stored is not None:
            made.writestr(zipfile.ZipInfo("mimetype"), stored)
        for name in names:
            made.writestr(name, "content " * 50)
        made.comment = comment
    return file.getvalue()


OOXML = ("[Content_Types].xml", "_rels/.rels")
SAMPLES = [
    ("image/png", 2, 3, png(2, 3)),
    ("image/jpeg", 640, 480, jpeg()),
    ("image/jpeg", 640, 480, jpeg(marker=0xC2)),
    ("image/jpeg", 9, 8, jpeg(9, 8, before=b"\xff\xc4\x00\x04ab\xff\xfe\x00\x03!" + b"\xff\x01")),
    ("image/gif", 30, 20, gif()),
    ("image/webp", 300, 200, webp(b"VP8 ")),
    ("image/webp", 300, 200, webp(b"VP8L")),
    ("image/webp", 300, 200, webp(b"VP8X")),
    ("image/bmp", 7, 5, bmp()),
    ("image/bmp", 7, 5, bmp(old=True)),
    ("image/heic", 4000, 3000, mp4(b"heic", b"mif1", rest=ispe(512, 512) + ispe(4000, 3000))),
    ("image/heic", None, None, mp4(b"mif1", b"heic")),
    ("image/heif", None, None, mp4(b"mif1")),
    ("image/avif", 10, 20, mp4(b"avif", b"mif1", rest=ispe(10, 20))),
    ("application/pdf", None, None, b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
    ("audio/ogg", None, None, ogg(b"OpusHead")),
    ("audio/ogg", None, None, ogg(b"\x01vorbis")),
    ("video/ogg", None, None, ogg(b"\x80theora")),
    ("video/ogg", None, None, ogg(b"fishead\0", b"\x01vorbis", b"\x80theora")),
    ("application/ogg", None, None, ogg(b"unknown.")),
    ("audio/mpeg", None, None, mp3_frame() * 3),
    ("audio/mpeg", None, None, id3(1000, mp3_frame() * 2)),
    ("audio/mpeg", None, None, id3(300_000, bytes(100) + mp3_frame() * 2)),
    ("audio/mpeg", None, None, mp3_frame(0xFFF38064, 208) * 2),
    ("audio/wav", None, None, riff(b"WAVE", chunk(b"fmt ", bytes(16)) + chunk(b"data", bytes(9)))),
    ("audio/flac", None, None, b"fLaC\x80\x00\x00\x22" + bytes(34)),
    ("audio/flac", None, None, id3(20, b"fLaC\x80\x00\x00\x22" + bytes(34))),
    ("audio/aac", None, None, adts_frame() * 2),
    ("audio/aac", None, None, id3(63, adts_frame() * 2)),
    ("audio/mp4", None, None, mp4(b"M4A ", b"mp42", b"isom")),
    ("video/mp4", None, None, mp4(b"isom", b"iso2", b"avc1", b"mp41")),
    ("video/quicktime", None, None, mp4(b"qt  ")),
    ("video/webm", None, None, matroska(b"webm", [b"V_VP9", b"A_OPUS"])),
    ("video/webm", None, None, matroska(b"webm", [])),
    ("audio/webm", None, None, matroska(b"webm", [b"A_OPUS"])),
    ("video/x-matroska", None, None, matroska(b"matroska", [b"A_OPUS"])),
    (f"{OFFICE}.wordprocessingml.document", None, None, archive(*OOXML, "word/document.xml")),
    (f"{OFFICE}.spreadsheetml.sheet", None, None, archive(*OOXML, "xl/workbook.xml", comment=b"!")),
    (f"{OFFICE}.presentationml.presentation", None, None, archive(*OOXML, "ppt/presentation.xml")),
    (f"{OPEN_DOCUMENT}.text", None, None, archive("a", stored=f"{OPEN_DOCUMENT}.text")),
    (f"{OPEN_DOCUMENT}.spreadsheet", None, None, archive(stored=f"{OPEN_DOCUMENT}.spreadsheet")),
    (f"{OPEN_DOCUMENT}.presentation", None, None, archive(stored=f"{OPEN_DOCUMENT}.presentation")),
    ("application/epub+zip", None, None, archive("a", stored="application/epub+zip")),
    ("application/zip", None, None, archive("a.txt", "word/document.xml")),
    ("application/zip", None, None, archive(stored="text/html")),
    ("application/zip", None, None, archive()),
    ("application/gzip", None, None, gzip.compress(b"text")),
    ("text/plain", None, None, b"hello"),
    ("application/octet-stream", None, None, b"\x00\x01\x02"),
]
"""The type, width and height of a file, and the file."""
assert {each[0] for each in SAMPLES} == set(EXTENSIONS)
