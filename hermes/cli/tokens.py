"""`hermes tokens`: create, list and revoke bearer tokens of the HTTP API."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from msgspec.structs import asdict

from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.errors import HermesError, StoreRefused
from hermes.messages import TOKEN_ROLES, Token
from hermes.run.configuration import Configuration, add_file_options
from hermes.sanitize import one_line, sanitize
from hermes.session_keys import API_PLATFORM
from hermes.standard_output import OutputFailed
from hermes.store.cli.ages import AGE_HELP, DAY, days
from hermes.store.cli.opening import existing_path, open_current, open_or_create
from hermes.store.cli.output import Printer, RichMissing, format_time, print_json, require_rich

EPILOG = (
    "exit codes: 0 success, 1 no such token, 2 invalid usage, 3 the database cannot be used, "
    "4 the operation failed"
)


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
    except (HermesError, OSError) as error:
        return _fail(error, 3 if isinstance(error, StoreRefused) else 4)
    return code


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"{sanitize(str(error))}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    description = "Create, list and revoke bearer tokens of the HTTP API."
    parser = argparse.ArgumentParser("hermes tokens", description=description, epilog=EPILOG)
    commands = parser.add_subparsers(required=True, metavar="command")

    text = "create a token, and print its secret: it cannot be shown again"
    create = commands.add_parser("create", help=text, description=text)
    create.set_defaults(run=_create)
    create.add_argument("name", metavar="NAME", help="what uses the token, such as laptop")
    create.add_argument(
        "--role", dest="roles", action="append", choices=TOKEN_ROLES, help="default: user"
    )
    create.add_argument(
        "--namespace",
        metavar="NAME",
        help="tokens with the same one share their conversations (default: the name)",
    )
    create.add_argument(
        "--key",
        dest="keys",
        action="append",
        metavar="PATTERN",
        help="other session keys that it may use, such as 'agent:main:telegram:*'",
    )
    create.add_argument("--expires", type=days, metavar="AGE", help=f"when: {AGE_HELP}")

    text = "list the tokens"
    listing = commands.add_parser("list", help=text, description=text)
    listing.set_defaults(run=_list)
    listing.add_argument("--all", action="store_true", help="include revoked and expired ones")

    text = "revoke a token: it is refused at once, also by a running bot"
    revoke = commands.add_parser("revoke", help=text, description=text)
    revoke.set_defaults(run=_revoke)
    revoke.add_argument("name", metavar="NAME", help="the name or the id of the token")

    for command in (create, listing, revoke):
        add_file_options(command)
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _create(options: argparse.Namespace) -> int:
    secret = new_secret()
    token = Token(
        id=new_id("tok"),
        name=options.name,
        namespace=options.namespace or options.name,
        roles=tuple(dict.fromkeys(options.roles or ["user"])),
        keys=tuple(options.keys or ()),
        created_at=0.0,
        expires_at=None if options.expires is None else time.time() + options.expires * DAY,
    )
    with open_or_create(options) as store:
        token = store.add_token(token, digest_of(secret))
        try:
            if options.json:
                print_json({**asdict(token), "secret": secret})
            else:
                sys.stdout.write(f"{secret}\n")
            sys.stdout.flush()
        except OSError:  # nobody has the secret
            store.revoke_token(token.id)
            raise
    if not options.json:
        expiry = "" if token.expires_at is None else f", expires {format_time(token.expires_at)}"
        roles = ", ".join(token.roles)
        sys.stderr.write(
            f"Created the token {one_line(token.name)} ({roles}{expiry}). "
            "Its secret is not shown again.\n"
        )
    return 0


def _list(options: argparse.Namespace) -> int:
    with open_current(existing_path(options)) as store:
        valid = set(store.valid_tokens())
        listed = [each for each in store.list_tokens() if each.platform == API_PLATFORM]
        tokens = [each for each in listed if options.all or each.id in valid]
    if options.json:
        for token in tokens:
            print_json({**asdict(token), "valid": token.id in valid})
        return 0
    if not tokens:
        sys.stderr.write("There are no tokens.\n")
        return 0
    require_rich()
    Printer(sys.stdout).table(
        ("name", "roles", "namespace", "keys", "created", "expires", "revoked", "id"),
        [_row(token) for token in tokens],
    )
    return 0


def _row(token: Token) -> tuple[str, ...]:
    times = [format_time(at) for at in (token.created_at, token.expires_at, token.revoked_at)]
    names = (token.name, ", ".join(token.roles), token.namespace, ", ".join(token.keys))
    return (*names, *times, token.id)


def _revoke(options: argparse.Namespace) -> int:
    with open_current(existing_path(options)) as store:
        # The name of a session is not its own, and `hermes web revoke` revokes it.
        is_session = any(
            each.id == options.name and each.platform != API_PLATFORM
            for each in store.list_tokens()
        )
        token = None if is_session else store.revoke_token(options.name)
    if token is None:
        sys.stderr.write(f"There is no token {one_line(options.name)!r} that is valid.\n")
        return 1
    if options.json:
        print_json(asdict(token))
    else:
        Printer(sys.stdout).line(f"Revoked the token {one_line(token.name)}.")
    return 0
