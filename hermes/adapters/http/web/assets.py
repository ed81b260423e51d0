"""The files of the web page, read from the package, made compact and compressed once.

Their address contains a hash of all of them, so browsers keep them and an upgrade replaces them.
Only names of the table below are found: a path is never looked up on the disk.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import trio
from starlette.requests import Request
from starlette.responses import Response

from hermes.adapters.http.endpoints import Call, Endpoint
from hermes.adapters.http.errors import not_found
from hermes.adapters.http.web.compact import compact_script, compact_style

FOLDER: Path = Path(__file__).parent / "page"
INDEX = "index.html"
_NAMED = re.compile(rb'(?<=(?:href|.src)=")[^"#:]+(?=")')
"""The names of files in index.html."""
TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
IMMUTABLE = "public, max-age=31536000, immutable"
_COMPACT = {".css": compact_style, ".js": compact_script}
_ZERO = re.compile(r"q=0(\.0*)?")


@attrs.frozen(kw_only=True)
class Asset:
    """A file of the page."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str
    """A hash of the content."""


@attrs.frozen(kw_only=True)
class Assets:
    """All files of the page."""

    index: Asset
    digest: str
    """A hash of all names and contents."""
    files: Mapping[str, Asset]


@functools.cache
def load_assets() -> Assets:
    """Read and compress the files of the page, once in a process."""
    contents = {
        path.relative_to(FOLDER).as_posix(): _served(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }
    whole = hashlib.sha256()
    for name, content in contents.items():
        whole.update(f"{name} {len(content)}\n".encode() + content)
    digest = whole.hexdigest()[:20]
    index = _NAMED.sub(rb"page/%b/\g<0>" % digest.encode(), contents.pop(INDEX))
    files = {name: _asset(name, content) for name, content in contents.items()}
    return Assets(index=_asset(INDEX, index), digest=digest, files=files)


def _served(path: Path) -> bytes:
    compact = _COMPACT.get(path.suffix)
    return compact(path.read_text("utf-8")).encode() if compact else path.read_bytes()


def _asset(name: str, content: bytes) -> Asset:
    return Asset(
        content=content,
        compressed=gzip.compress(content, mtime=0),
        media_type=TYPES[Path(name).suffix],
        tag=hashlib.sha256(content).hexdigest()[:20],
    )


async def index(call: Call) -> Response:
    """Return the page. It is the same for everybody, and has no secret in it."""
    await trio.lowlevel.checkpoint()
    return _response(call.request, load_assets().index, {"Content-Security-Policy": POLICY})


async def file(call: Call) -> Response:
    """Return a file of the page. An address of another version is not found."""
    await trio.lowlevel.checkpoint()
    assets, asked = load_assets(), call.request.path_params
    found = assets.files.get(asked["name"]) if asked["digest"] == assets.digest else None
    if found is None:
        raise not_found("such file of the page")
    return _response(call.request, found, {"Cache-Control": IMMUTABLE})


def _response(request: Request, asset: Asset, headers: dict[str, str]) -> Response:
    compress = accepts_gzip(request.headers.get("accept-encoding", ""))
    tag = f'"{asset.tag}{"-gzip" if compress else ""}"'
    headers = {**headers, "ETag": tag, "Vary": "Accept-Encoding"}
    known = request.headers.get("if-none-match", "")
    if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    if compress:
        headers["Content-Encoding"] = "gzip"
    content = asset.compressed if compress else asset.content
    return Response(content, headers={**headers, "Content-Type": asset.media_type})


def accepts_gzip(header: str) -> bool:
    """Whether a client takes compressed answers, by its header Accept-Encoding."""
    for each in header.lower().split(","):
        coding, _, quality = each.partition(";")
        if coding.strip() in {"gzip", "x-gzip", "*"}:
            return _ZERO.fullmatch(quality.strip()) is None
    return False


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path="/", handle=index, summary="Return the web page.", role=None),
    Endpoint(method="GET", path="/page/{digest}/{name:path}", handle=file, role=None,
             summary="Return a script, a style or an icon of the web page."),
)  # fmt: skip
