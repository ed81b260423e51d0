"""Secrets for tests of redaction, and the ways in which they may be encoded."""

from __future__ import annotations

import base64
import html.entities
import json
import re
from urllib.parse import quote, quote_plus

SECRET = "hV7/q+9=Zk\"x'\\2pä😀w0rd"
TOKEN = "tok_A1-b2.C3*d4+e5/f6=g7~h8"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"


def wrapped(text, width, line_break="\n"):
    """Return a text in lines of this width."""
    lines = [text[start : start + width] for start in range(0, len(text), width)]
    return line_break.join(lines)


NAMES = {
    html.entities.html5[name]: f"&{name}"
    for name in ("plus;", "equals;", "sol;", "quot;", "apos;", "bsol;", "auml;", "percnt;", "amp;")
}
ENCODINGS = {
    "plain": str,
    "json": json.dumps,
    "json, not ASCII only": lambda text: json.dumps(text, ensure_ascii=False),
    "json twice": lambda text: json.dumps(json.dumps(text)),
    "json, every character escaped": lambda text: "".join(
        json.dumps(one)[1:-1] if ord(one) > 126 else f"\\u{ord(one):04x}" for one in text
    ),
    "repr": repr,
    "ascii": ascii,
    "repr twice": lambda text: repr(repr(text)),
    "bytes": lambda text: repr(text.encode()),
    "long escapes": lambda text: "".join(f"\\U{ord(one):08x}" for one in text),
    "url": lambda text: quote(text, safe=""),
    "url path": quote,
    "form": quote_plus,
    "url twice": lambda text: quote(quote(text, safe=""), safe=""),
    "every octet": lambda text: "".join(f"%{octet:02x}" for octet in text.encode()),
    "html": html.escape,
    "entities": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "hex entities": lambda text: "".join(f"&#x{ord(one):X};" for one in text),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "basic": lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    "basic, another user": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "base64 for urls": lambda text: base64.urlsafe_b64encode(f"{text}:x".encode()).decode(),
    "markdown": lambda text: re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text),
    "markdown in json": lambda text: json.dumps(re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)),
    "wrapped": lambda text: wrapped(text, 5),
    "wrapped and indented": lambda text: wrapped(text, 7, " \n    "),
    "wrapped with carriage returns": lambda text: wrapped(text, 4, "\r\n"),
    "wrapped quote": lambda text: wrapped(text, 5, "\n> "),
    "wrapped by backslashes": lambda text: wrapped(text, 5, "\\\n"),
    "wrapped in json": lambda text: json.dumps(wrapped(text, 5)),
    "wrapped base64": lambda text: wrapped(base64.b64encode(text.encode()).decode(), 8),
    "wrapped hex": lambda text: wrapped(text.encode().hex(), 8),
    "wrapped url": lambda text: quote(wrapped(text, 6), safe="\n"),
    "wrapped by carriage returns alone": lambda text: wrapped(text, 4, "\r"),
    "wrapped by line separators": lambda text: wrapped(text, 4, "\u2028"),
    "wrapped by other breaks": lambda text: wrapped(text, 4, "\x0b\x85 "),
    "with invisible characters": lambda text: wrapped(text, 3, "\u200e\u200b\xad\ufe0f"),
    "with escaped invisible characters": lambda text: wrapped(text, 3, "\\u200e&shy;%0D"),
    "octal": lambda text: "".join(f"\\{octet:03o}" for octet in text.encode()),
    "code points": lambda text: "".join(f"\\u{{{ord(one):x}}}" for one in text),
    "named entities": lambda text: "".join(NAMES.get(one, one) for one in text),
    "base64 in a url": lambda text: quote(base64.b64encode(f"a{text}bc".encode()).decode()),
}
"""Functions that encode a secret, by name."""

DISGUISES = {
    "deeply indented": lambda text: wrapped(text, 9, "\n" + 20 * " "),
    "comment": lambda text: wrapped(text, 9, "\n# "),
    "C comment": lambda text: wrapped(text, 9, "\n// "),
    "list": lambda text: wrapped(text, 9, "\n- "),
    "table": lambda text: wrapped(text, 9, " |\n| "),
    "quoted-printable": lambda text: wrapped(text, 9, "=\n"),
    "code": lambda text: wrapped(text, 9, "`"),
    "bold": lambda text: f"**{text[:9]}**{text[9:]}",
    "spaced": " ".join,
    "hex with colons": lambda text: text.encode().hex(":"),
    "capitals": str.upper,
    "lower case": str.lower,
    "form": lambda text: quote(text, safe="").replace("%2B", " "),
    "percent-encoded, then in lower case": lambda text: quote(text, safe="").lower(),
    "base64 in a table": lambda text: wrapped(base64.b64encode(text.encode()).decode(), 9, "|\n|"),
}
"""Functions that disguise a secret with many letters and digits, by name."""

KEYS = [
    "sk-proj-0123456789abcdefABCDEF",
    "sk-ant-api03-ab_cdef-ghijklmnop",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "gsk_abcdefghijklmnop1234",
    "xai-abcdefghijklmnop1234",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
    "key-3ax6xnjp29jd6fds4gc373sgvjxteol0",
]
"""Texts that look like API keys of real providers."""
