"""The files of the web page: what is served, how it is cached, and how large it is."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
import trio
from pygments.lexers import CssLexer, JavascriptLexer
from pygments.token import Comment, String

from hermes.adapters.http.web.assets import (
    FOLDER,
    POLICY,
    TYPES,
    accepts_gzip,
    load_assets,
)
from hermes.adapters.http.web.compact import compact_script, compact_style
from tests.support.http import http_server

MAX_BYTES = 60_000
IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']""")


@pytest.fixture
async def server(path):
    async with http_server(path) as opened:
        yield opened


def anybody(server, **headers):
    """A client without a token."""
    client = server.http()
    del client.headers["Authorization"]
    client.headers.update(headers)
    return client


async def raw_get(server, target):
    """Send a target as it is, which a client would simplify; returns everything received."""
    address = urlsplit(server.url)
    head = f"GET {target} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
    async with await trio.open_tcp_stream(address.hostname, address.port) as stream:
        await stream.send_all(head.encode())
        return b"".join([piece async for piece in stream])


def names():
    return [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()]


def url_of(name):
    return f"/page/{load_assets().digest}/{name}"


async def test_the_page_is_served_to_anybody_and_never_cached(server):
    response = await anybody(server).get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-security-policy"] == POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"
    assert "camera=()" in response.headers["permissions-policy"]
    assert f'src="page/{load_assets().digest}/main.js"' in response.text


def test_the_policy_is_that_of_the_documentation():
    assert POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


async def test_the_page_is_the_same_for_everybody_and_has_no_secret(server):
    pages = [
        (await client.get("/")).text
        for client in (anybody(server), server.http(), anybody(server, Cookie="hermes=x"))
    ]
    assert len(set(pages)) == 1
    assert server.secret not in pages[0]


async def test_everything_that_the_page_names_is_served(server):
    page = (await anybody(server).get("/")).text
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert named
    for each in named:
        assert (await anybody(server).get(f"/{each}")).status_code == 200, each


async def test_every_file_is_served_with_its_type_and_kept_by_browsers(server):
    client = anybody(server)
    for name in names():
        if name == "index.html":
            continue
        response = await client.get(url_of(name))
        assert response.status_code == 200, name
        compact = {"css": compact_style, "js": compact_script}.get(name.rpartition(".")[2])
        source = (FOLDER / name).read_text()
        assert response.text == (compact(source) if compact else source)
        assert response.headers["content-type"] == TYPES[f".{name.rpartition('.')[2]}"]
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_browser_that_has_a_file_gets_no_content(server):
    client = anybody(server)
    for encoding in ("gzip", "identity"):
        first = await client.get(url_of("main.js"), headers={"Accept-Encoding": encoding})
        for tag in (first.headers["etag"], f'"x", W/{first.headers["etag"]}'):
            headers = {"Accept-Encoding": encoding, "If-None-Match": tag}
            again = await client.get(url_of("main.js"), headers=headers)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
    other = await client.get(url_of("main.js"), headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


async def test_files_are_compressed_for_clients_that_take_it(server):
    client = anybody(server)
    plain = await client.get(url_of("main.js"), headers={"Accept-Encoding": "identity"})
    compressed = await client.get(url_of("main.js"), headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert compressed.content == plain.content
    assert compressed.headers["etag"] != plain.headers["etag"]


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True), ("br, GZIP;q=0.5", True), ("*", True), ("gzip;q=1.0", True), ("", False),
        ("br", False), ("gzip;q=0", False), ("gzip; q=0.000", False), ("gzip;q=0.001", True),
    ],
)  # fmt: skip
def test_what_a_client_takes(header, accepted):
    assert accepts_gzip(header) is accepted


async def test_a_request_for_the_head_has_no_body(server):
    response = await anybody(server).head(url_of("main.js"))
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    "name",
    [
        "../assets.py", "..%2fassets.py", "%2e%2e/assets.py", "..%5cassets.py", "/etc/passwd",
        "%2fetc%2fpasswd", "main.js%00", "./main.js", "%6dain.js", "main.js/", "", "nothing.js",
        "index.html", "lib/../main.js", "main.js/..%2f..%2fassets.py", "MAIN.JS",
    ],
)  # fmt: skip
async def test_nothing_else_is_served(server, name):
    for folder in ("/page/", f"/page/{load_assets().digest}/", "/page/x/"):
        received = await raw_get(server, f"{folder}{name}")
        assert received.startswith(b"HTTP/1.1 404 ")
        assert b"import" not in received


async def test_an_address_of_another_version_is_not_found(server):
    assert (await anybody(server).get("/page/0123456789/main.js")).status_code == 404


async def test_a_foreign_name_gets_no_page(server):
    headers = {"Host": "evil.example"}
    assert (await anybody(server).get("/", headers=headers)).status_code == 421
    assert (await anybody(server).get(url_of("main.js"), headers=headers)).status_code == 421


def test_every_file_has_a_type_that_is_served():
    assert [name for name in names() if f".{name.rpartition('.')[2]}" not in TYPES] == []


def test_scripts_import_files_of_the_page_by_relative_names():
    for name in names():
        if not name.endswith(".js"):
            continue
        source = (FOLDER / name).read_text()
        for target in IMPORT.findall(source):
            assert target.startswith(("./", "../")), f"{name} imports {target}"
            exists = (FOLDER / name).parent.joinpath(target).resolve().is_file()
            assert exists, f"{name}: {target}"


def test_what_means_nothing_is_not_served():
    source = """
        a = b ? 1 : "c // d"; // e
        /** f
         * g */
        const h = (i, j) => {
          return /[/ "]/.test(k)
            && `l { ${m ? `n } ${o}` : "p"} // q`
        }
        r - -s
        t++
    """
    assert compact_script(source) == (
        'a=b?1:"c // d";const h=(i,j)=>{return /[/ "]/.test(k)&&`l { ${m?`n } ${o}`:"p"} // q`}\n'
        "r - -s\nt++"
    )
    style = """
        /* a */
        .b > .c :is(d, e)::before { content: "f; /* g */"; width: calc(1px + 2px); }
        @media (width < 3px) {
          i { color: red; }
        }
    """
    assert compact_style(style) == (
        '.b>.c :is(d,e)::before{content:"f; /* g */";width:calc(1px + 2px)}'
        "@media (width < 3px){i{color:red}}"
    )


def significant(source, lexer):
    """Return the tokens of a file: strings as they are, no comments, no spaces between tokens."""
    return [
        value if kind in String else value.strip()
        for kind, value in lexer().get_tokens(source)
        if kind not in Comment and value.strip()
    ]


def test_only_comments_and_spaces_are_missing():
    """Pygments finds the same tokens in what is served."""
    for name in [each for each in names() if each.endswith(".js")]:
        source = (FOLDER / name).read_text()
        served = load_assets().files[name].content.decode()
        assert significant(served, JavascriptLexer) == significant(source, JavascriptLexer), name
    source = "".join(significant((FOLDER / "style.css").read_text(), CssLexer))
    served = load_assets().files["style.css"].content.decode()
    assert "".join(significant(served, CssLexer)) == source.replace(";}", "}")


def test_scripts_and_styles_are_small():
    """The sum over all of them, each compressed by itself as it is served."""
    sizes = {
        name: len(asset.compressed)
        for name, asset in load_assets().files.items()
        if name.endswith((".js", ".css"))
    }
    assert sum(sizes.values()) < MAX_BYTES, sizes
