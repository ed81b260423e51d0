"""Opens the web page in a browser, signed in, by a file that only its owner can read.

A browser gets the address that it opens as an argument, which everybody on the machine can see. So
it gets that of a file that redirects to the page: the one-time token is in the file alone.
"""

from __future__ import annotations

import html
import logging
import os
import secrets
import shutil
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.http.credentials import digest_of, new_secret
from hermes.adapters.http.web.people import LINK_PREFIX, OPERATOR
from hermes.background import open_background, set_event, start_soon
from hermes.settings.installation import command
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

SECONDS = 60.0
"""How long a link can be used."""
POLL = 0.25
NO_BROWSER = "no browser can be opened on this machine; to print a link that signs in: {command}"
REDIRECT = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>Hermes</title>
<p><a href="{url}">Continue to Hermes</a></p>
</html>
"""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def no_browser() -> str:
    """Return the sentence for a machine without a browser."""
    return NO_BROWSER.format(command=command("web --print"))


def new_token() -> str:
    """Return a one-time token."""
    return new_secret(LINK_PREFIX)


def link_to(url: str, token: str) -> str:
    """Return the link to the page of a server that signs in with a one-time token.

    The token is in the fragment, which no browser sends to a server.
    """
    host, _, port = urlsplit(url).netloc.rpartition(":")
    return f"http://{_ANYWHERE.get(host, host)}:{port}/#token={token}"


def folder_of(path: Path) -> Path:
    """Return the folder beside a database in which the files for browsers are."""
    return path.parent / f"{path.name}.sign-in"


def remove_redirects(path: Path) -> None:
    """Remove what a process has left that was killed."""
    shutil.rmtree(folder_of(path), ignore_errors=True)


@contextmanager
def redirect(path: Path, link: str) -> Iterator[Path]:
    """Create a file for the block that redirects to a link. Only its owner can read it."""
    folder = folder_of(path)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    descriptor, name = tempfile.mkstemp(".html", f"{secrets.token_hex(4)}-", folder)  # mode 0600
    file = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(REDIRECT.format(url=html.escape(link)))
        yield file
    finally:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # another file is in it
            folder.rmdir()


def open_file(file: Path) -> bool:
    """Open a file in a browser with windows. Returns False if there is none."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # Without a screen, Python finds browsers that would take over the terminal.
    if type(browser) is webbrowser.GenericBrowser and "BROWSER" not in os.environ:
        return False
    return browser.open(file.absolute().as_uri())


@asynccontextmanager
async def showing_page(
    runtime: Runtime, url: str, path: Path, *, show: bool
) -> AsyncIterator[None]:
    """Open the page of a server in a browser, if it is to be shown, during the block."""
    await trio.to_thread.run_sync(remove_redirects, path)
    async with open_background() as background:
        if show:
            start_soon(background, _show, runtime, url, path)
        yield


async def _show(runtime: Runtime, url: str, path: Path) -> None:
    with contained() as caught:
        await _sign_in(runtime, url, path)
    if caught.error is not None:
        log.error("could not open the page in a browser", exc_info=caught.error)


async def _sign_in(runtime: Runtime, url: str, path: Path) -> None:
    """Open the page, and wait until the link was used or has expired."""
    token = new_token()
    digest = digest_of(token)
    await runtime.api.add_sign_in(digest, OPERATOR)
    with redirect(path, link_to(url, token)) as file, trio.move_on_after(SECONDS):
        async with open_background() as background:
            failed = trio.Event()
            start_soon(background, _open, file, failed)
            while await runtime.api.find_sign_in(digest) is not None:
                with trio.move_on_after(POLL):
                    await failed.wait()
                    return


async def _open(file: Path, failed: trio.Event) -> None:
    """Open a file in a browser; the command of some browsers ends when their window is closed."""
    if not await trio.to_thread.run_sync(open_file, file, abandon_on_cancel=True):
        log.warning("%s", no_browser())
        set_event(failed)
