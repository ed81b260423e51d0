"""`hermes web`: open the page of a running bot, signed in, and decide who else may use it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import asdict

from hermes.actors.admission.pairing import read_code, welcome_rows
from hermes.adapters.http.credentials import digest_of
from hermes.adapters.http.web.people import OPERATOR
from hermes.config import shown_database
from hermes.errors import HermesError, StoreRefused
from hermes.messages import Pairing, Source, Token
from hermes.run import page, status
from hermes.run.configuration import Configuration, add_file_options
from hermes.run.local_files import local_path
from hermes.run.telemetry import WRITE_INTERVAL
from hermes.sanitize import one_line, sanitize
from hermes.session_keys import WEB_PLATFORM
from hermes.settings.installation import command
from hermes.standard_output import OutputFailed
from hermes.store.cli.opening import existing_path, open_current
from hermes.store.cli.output import Printer, RichMissing, format_time, print_json, require_rich
from hermes.store.sqlite import runtime_lock
from hermes.texts import ENGLISH

EPILOG = (
    "exit codes: 0 success, 1 no such session or code, or no browser, 2 invalid usage, 3 the "
    "database cannot be used, 4 the operation failed"
)
DESCRIPTION = """\
Open the web page of a running bot in a browser, signed in as an operator. The link works once, and
for a minute.
"""
NOT_RUNNING = "No bot is running on {path}; to start one with its page: {start}"
NO_HTTP = "The bot on {path} serves no HTTP; stop it, and start it with: {start}"
BY = Source("console", user_id="operator")
WELCOME = partial(welcome_rows, ENGLISH)


class NoPage(Exception):
    """There is no page; the message says why, and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.db = Configuration.of(options).database()
        code: int = options.run(options)
    except (BrokenPipeError, OutputFailed):
        raise
    except (RichMissing, ValueError) as error:
        return _fail(error, 2)
    except NoPage as error:
        return _fail(error, 1)
    except (HermesError, OSError) as error:
        return _fail(error, 3 if isinstance(error, StoreRefused) else 4)
    return code


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"{sanitize(str(error))}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hermes web", description=DESCRIPTION, epilog=EPILOG)
    parser.set_defaults(run=_open)
    parser.add_argument(
        "--print", action="store_true", dest="printed",
        help="print the link instead of opening it",
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="command")

    text = "list who is signed in"
    listing = commands.add_parser("sessions", help=text, description=text)
    listing.set_defaults(run=_sessions)

    text = "end a session: it is refused at once"
    revoke = commands.add_parser("revoke", help=text, description=text)
    revoke.set_defaults(run=_revoke)
    revoke.add_argument("id", metavar="ID", help="the id of the session")

    text = "let in a visitor of the page, who was shown a code"
    pair = commands.add_parser("pair", help=text, description=text)
    pair.set_defaults(run=_pair)
    pair.add_argument("code", metavar="CODE", help="the code that the visitor was shown")
    pair.add_argument("--role", choices=("user", "operator"), default="user", help="default: user")

    add_file_options(parser)
    for each in (listing, revoke, pair):
        add_file_options(each)
    for each in (listing, revoke):
        each.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _open(options: argparse.Namespace) -> int:
    database = existing_path(options)
    path = local_path(database)
    url, token = _url(database), page.new_token()
    digest, link = digest_of(token), page.link_to(url, token)
    with open_current(database) as store:
        store.add_sign_in(digest, OPERATOR)
        if options.printed:
            sys.stdout.write(f"{link}\n")
            sys.stderr.write("The link works once, and for a minute. It signs in an operator.\n")
            return 0
        with page.redirect(path, link) as file:
            if not page.open_file(file):
                raise NoPage(f"{page.no_browser().capitalize()}")
            deadline = time.monotonic() + page.SECONDS
            while store.find_sign_in(digest) is not None:
                if time.monotonic() > deadline:
                    raise NoPage(f"The browser did not open the page; {_other_way()}")
                time.sleep(page.POLL)
    Printer(sys.stdout).line(f"Signed in at {url}.")
    return 0


def _other_way() -> str:
    return f"to print a link that signs in: {command('web --print')}"


def _url(database: Path | str) -> str:
    """Return the URL of the bot that runs on a database. Raises `NoPage` without one."""
    path, shown = local_path(database), shown_database(database)
    start = command("run --open")
    deadline = time.monotonic() + WRITE_INTERVAL * 2
    while (owner := runtime_lock.owner(path)) is not None:
        try:
            found = status.read(status.status_path(path))
        except status.UnreadableStatus:
            found = None
        current = found is not None and owner in {f"pid {found.pid}", "unknown process"}
        if current and found is not None and found.http is not None:
            return found.http
        if time.monotonic() > deadline:  # a bot that has just started writes its status soon
            raise NoPage(NO_HTTP.format(path=shown, start=start))
        time.sleep(page.POLL)
    raise NoPage(NOT_RUNNING.format(path=shown, start=start))


def _sessions(options: argparse.Namespace) -> int:
    with open_current(existing_path(options)) as store:
        valid = set(store.valid_tokens())
        found = [each for each in store.list_tokens() if each.id in valid and _is_session(each)]
    if options.json:
        for each in found:
            print_json(asdict(each))
        return 0
    if not found:
        sys.stderr.write("Nobody is signed in.\n")
        return 0
    require_rich()
    Printer(sys.stdout).table(
        ("name", "role", "browser", "since", "expires", "id"), [_row(each) for each in found]
    )
    return 0


def _is_session(token: Token) -> bool:
    return token.platform == WEB_PLATFORM


def _row(session: Token) -> tuple[str, ...]:
    times = [format_time(at) for at in (session.created_at, session.expires_at)]
    return (session.name, ", ".join(session.roles), session.client or "", *times, session.id)


def _revoke(options: argparse.Namespace) -> int:
    with open_current(existing_path(options)) as store:
        known = any(each.id == options.id and _is_session(each) for each in store.list_tokens())
        session = store.revoke_token(options.id) if known else None
    if session is None:
        sys.stderr.write(f"There is no session {one_line(options.id)!r} that is valid.\n")
        return 1
    if options.json:
        print_json(asdict(session))
    else:
        Printer(sys.stdout).line(f"Revoked the session of {one_line(session.name)}.")
    return 0


def _pair(options: argparse.Namespace) -> int:
    code = read_code(options.code)
    with open_current(existing_path(options)) as store:
        result = (
            None if code is None else store.approve_pairing(code, options.role, BY, welcome=WELCOME)
        )
    if not isinstance(result, Pairing):
        locked = result is not None and result.seconds
        text = "There were too many wrong codes; try again in an hour."
        sys.stderr.write(f"{text if locked else 'No visitor has this code.'}\n")
        return 1
    name = result.source.user_name or result.source.user_id or ""
    Printer(sys.stdout).line(f"Let in {one_line(name)} as {options.role}.")
    return 0
