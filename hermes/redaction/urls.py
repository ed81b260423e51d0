"""Credentials inside of URLs, headers and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, unquote_plus, urlsplit

SECRET_NAME: re.Pattern[str] = re.compile(
    "key|token|secret|passw|passphrase|passcode|(?<!by)pass$|pwd|auth|cookie|credential|sig|jwt",
    re.IGNORECASE,
)
"""Matches names of headers, variables and parameters that hold secrets; LANG and X-Team do not."""
# Names of parameters that hold a secret only if the value could be one: not `code=DE`.
_PERHAPS = re.compile("code|access|k", re.IGNORECASE)
_MIXED = r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])"
_CODE = re.compile(_MIXED + r".{8,}")
# A part of a path that nobody would choose as a name, such as that of a webhook.
_RANDOM = re.compile(_MIXED + r"[\w.~:+=%-]{20,}")
# With one of these as the password, the user name is the token.
_PLACEHOLDERS = frozenset({"", "x", "x-oauth-basic", "x-token-auth", "api_token"})


def url_credentials(url: str) -> list[str]:
    """Return the secrets in a URL, as they are written there and decoded.

    These are the password or the token of the user information, parameters with the name of a
    secret (in the query, in the fragment, or behind a semicolon in the path), and long parts of the
    path with letters and digits. Returns none for a text that is not a URL.
    """
    found = dict.fromkeys(_credentials(url))
    return list(dict.fromkeys([*found, *map(unquote, found), *map(unquote_plus, found)]))


def named_credentials(fields: Iterable[tuple[str, str]]) -> list[str]:
    """Return the values of headers or variables that have the name of a secret.

    Of `Bearer TOKEN` the token is a secret by itself.
    """
    values = [value for name, value in fields if SECRET_NAME.search(name)]
    return [*values, *(value.rpartition(" ")[2] for value in values if " " in value)]


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
        yield from _of_user(user)
    fields = [*re.split("[&;]", parts.query), *re.split("[&;?]", parts.fragment)]
    if parts.netloc:
        path = [part.split(";") for part in parts.path.split("/")]
        yield from filter(_RANDOM.fullmatch, (part[0] for part in path))
        fields += [field for part in path for field in part[1:]]
    for field in fields:
        name, _, value = field.partition("=")
        named = SECRET_NAME.search(name) or (_PERHAPS.fullmatch(name) and _CODE.fullmatch(value))
        if value and named:
            yield value


def _of_user(user: str) -> Iterator[str]:
    name, _, password = user.partition(":")
    if password in _PLACEHOLDERS:
        yield name
        return
    yield password
    if _RANDOM.fullmatch(name):
        yield name
