"""Credentials inside of URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus, urlsplit

SECRET_NAME: re.Pattern[str] = re.compile(
    "key|token|secret|passw|auth|cookie|credential|sig", re.IGNORECASE
)
"""Matches names of headers, variables and parameters that hold secrets; LANG and X-Team do not."""
# A part of a path that nobody would choose as a name, such as that of a webhook.
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[\w.~:+=%-]{20,}")


def url_credentials(url: str) -> list[str]:
    """Return the secrets in a URL, as they are written there and decoded.

    These are the user information, parameters with the name of a secret, and long parts of the path
    with letters and digits. Returns none for a text that is not a URL.
    """
    found = dict.fromkeys(_credentials(url))
    return list(dict.fromkeys([*found, *map(unquote, found), *map(unquote_plus, found)]))


def hide_credentials(url: str) -> str:
    """Return the representation of a URL without its credentials."""
    for secret in url_credentials(url):
        url = url.replace(secret, "…")
    return repr(url)


def _credentials(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    user, _, host = parts.netloc.rpartition("@")
    if user and host:
        name, _, password = user.partition(":")
        yield password or name
    for field in re.split("[&;]", parts.query):
        name, _, value = field.partition("=")
        if value and SECRET_NAME.search(name):
            yield value
    if parts.netloc:
        yield from filter(_RANDOM.fullmatch, parts.path.split("/"))
