"""Which addresses of links and images are kept."""

from __future__ import annotations

import re

_LINK = re.compile(r"(?:https?://|mailto:)[!-~]+", re.IGNORECASE)
_DATA = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
_FILE = re.compile(r"/api/conversations/(?!\.)[A-Za-z0-9_.~:@%-]+/files/[A-Za-z0-9_-]+")
_DOT = re.compile("%2e", re.IGNORECASE)


def is_link(address: str) -> bool:
    """Whether a link may lead there: to another site, or to a mailbox.

    Relative addresses are refused: an answer has no base, and links into our own API do harm.
    """
    return _LINK.fullmatch(address) is not None


def is_own_file(address: str) -> bool:
    """Whether this is the path of a file of a conversation on this server.

    Browsers resolve `%2e%2e` as they resolve `..`, so both are refused.
    """
    return _FILE.fullmatch(address) is not None and _DOT.search(address) is None


def is_image_data(address: str) -> bool:
    """Whether this is an image as a `data:` URL, in a format that contains no scripts."""
    return _DATA.fullmatch(address) is not None
