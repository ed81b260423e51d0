"""The URL of a database: what libpq needs, what is Hermes' own, and what may be shown of it."""

from __future__ import annotations

import math
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict

from hermes.config import shown_database

WAIT: Final = 10.0
LEASE: Final = 6.0
SHORTEST_LEASE: Final = 0.1
OURS: Final = {"wait", "lease", "node", "accept_data_loss"}
_INVALID: Final = (
    "the URL of the database is not valid; use postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
)
_YES_NO: Final = {"yes": True, "no": False}


@attrs.frozen
class Address:
    """Where a database is. Only `label` may be shown: the rest may contain a password."""

    label: str
    parameters: dict[str, Any] = attrs.field(repr=False)
    """The parameters of libpq."""
    wait: float = WAIT
    """For how many seconds a request waits for a database that cannot be reached."""
    lease: float = LEASE
    """After how many seconds without a heartbeat other nodes may take what this one serves."""
    node: str | None = None
    """The name of this process, also in the names of its local files; None for that of the machine
    and its id."""
    accept_data_loss: bool = False
    """Whether a server is accepted that may lose what it has acknowledged."""

    @property
    def has_several_hosts(self) -> bool:
        """Whether there is a server to fail over to."""
        return "," in str(self.parameters.get("host", ""))


def parse(url: str) -> Address:
    """Read a URL. What `OURS` names in its query is Hermes' own.

    Raises `ValueError` with a sentence that does not contain the URL.
    """
    try:
        parts = urlsplit(url)
        given = [pair for pair in parts.query.split("&") if pair]
        ours = dict(parse_qsl("&".join(filter(_is_ours, given)), keep_blank_values=True))
        rest = "&".join(pair for pair in given if not _is_ours(pair))  # libpq knows no "+"
        # "h1,h2" is no host for urllib, which does not look at it here.
        parameters = conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
    except (ValueError, psycopg.Error):
        raise ValueError(_INVALID) from None  # their messages quote parts of the URL
    return Address(
        shown_database(url),
        parameters,
        wait=_seconds(ours, "wait", WAIT, 0.0),
        lease=_seconds(ours, "lease", LEASE, SHORTEST_LEASE),
        node=ours.get("node"),
        accept_data_loss=_accepts(ours),
    )


def _is_ours(pair: str) -> bool:
    return pair.partition("=")[0] in OURS


def _seconds(ours: dict[str, str], name: str, default: float, least: float) -> float:
    if name not in ours:
        return default
    try:
        seconds = float(ours[name])
    except ValueError:
        seconds = math.nan
    if not least <= seconds < math.inf:
        raise ValueError(
            f"{name} in the URL of the database must be a number of seconds from {least:g} on"
        )
    return seconds


def _accepts(ours: dict[str, str]) -> bool:
    try:
        return _YES_NO[ours.get("accept_data_loss", "no")]
    except KeyError:
        raise ValueError("accept_data_loss in the URL of the database must be yes or no") from None
