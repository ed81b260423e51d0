"""Take the two pictures of the web page that the README shows.

    python docs/page_pictures.py    writes docs/page-chat.png and docs/page-live.png

The browser is that of the tests; the fonts come from npm's registry, into the folder build.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tests.support

from tests.support.browser import FOLDER, find_browser, only_once, package  # noqa: E402
from tests.support.page_stories import add_earlier, keep_busy, play, story_server  # noqa: E402

FONTS = ("@expo-google-fonts/inter@0.4.2", "@expo-google-fonts/jetbrains-mono@0.4.1")
CONFIGURATION = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{folder}</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""
TALL, WIDE = ({"width": 1440, "height": height} for height in (1060, 900))
WAIT = 1500  # milliseconds in which the live view has shown the latest state


def fonts() -> Path:
    """Return the configuration of the fonts, which are fetched once."""
    for name in FONTS:
        with only_once(f"fonts/{name.split('/')[1]}") as folder:
            if not (folder / "package").exists():
                package(name, folder)
    configuration = FOLDER / "fonts" / "fonts.conf"
    configuration.write_text(CONFIGURATION.format(folder=configuration.parent))
    return configuration


def take(browser: Browser, path: Path) -> None:
    """Play the stories, and take the pictures."""
    with story_server(path) as web:
        add_earlier(web, path)
        context = browser.new_context(locale="en-GB", viewport=TALL, reduced_motion="reduce")
        token = web.sign_in_token("ann", "operator")
        context.request.post(f"{web.url}/api/sign-in", data={"token": token})
        page = context.new_page()
        page.goto(web.url)
        play(web, page)
        page.screenshot(path=ROOT / "docs" / "page-chat.png", animations="disabled")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size(WIDE)
        page.mouse.move(0, 0)
        page.goto(f"{web.url}/#/live")
        keep_busy(web)
        page.wait_for_timeout(WAIT)
        page.screenshot(path=ROOT / "docs" / "page-live.png", animations="disabled")
        context.close()


def main() -> None:
    options = find_browser().options()
    options["env"]["FONTCONFIG_FILE"] = str(fonts())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        take(browser, Path(folder) / "state.db")
        browser.close()


if __name__ == "__main__":
    main()
