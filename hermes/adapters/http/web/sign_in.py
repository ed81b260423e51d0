"""Endpoints of the sign-in: one-time links, requests for access, and sessions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from hermes.adapters.http.access.cookies import expired_cookie, session_cookie, session_secret
from hermes.adapters.http.access.logins import network_of
from hermes.adapters.http.api.types import Body
from hermes.adapters.http.credentials import SESSION_PREFIX, Caller, digest_of, new_secret
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError, not_found
from hermes.adapters.http.web import people
from hermes.messages import Token
from hermes.session_keys import WEB_PLATFORM

LINK_SECONDS = 60
EXPIRED = "The link was used already, or is older than a minute; `hermes web` makes a new one."
Secret = Annotated[str, Meta(min_length=1, max_length=200)]


class SignInBody(Body):
    """The one-time token of a link; with `switch`, another person is signed out first."""

    token: Secret
    switch: bool = False


class AccessBody(Body):
    """What the operator will see as the name of the visitor."""

    name: Annotated[str, Meta(min_length=1, max_length=60, pattern=r"\S")]


class CheckBody(Body):
    """The secret of a request for access."""

    request: Secret


class Me(msgspec.Struct, kw_only=True):
    """Who sends a request: the holder of a token, or somebody who is signed in to the page."""

    id: str
    """The id of the token or the session."""
    platform: str
    user: str
    """The id of the principal; that of a person is the same in all sessions."""
    name: str
    roles: tuple[str, ...]
    expires_at: float | None


class AccessRequest(msgspec.Struct, kw_only=True):
    """A request for access. An operator lets the visitor in with the code."""

    code: str
    request: str
    """The secret with which the visitor asks whether it was let in."""


class Waiting(msgspec.Struct):
    """No operator has let the visitor in yet."""

    waiting: bool


class SignedOut(msgspec.Struct):
    """Whether there was a session."""

    signed_out: bool


class WebSession(msgspec.Struct, kw_only=True):
    """A session of the page: a browser in which somebody is signed in."""

    id: str
    user: str
    name: str
    roles: tuple[str, ...]
    client: str | None
    """The browser, as it describes itself."""
    created_at: float
    expires_at: float | None
    current: bool


class SessionList(msgspec.Struct):
    """The sessions of a person, or of everybody for operators; the latest first."""

    sessions: list[WebSession]


class SignInLink(msgspec.Struct, kw_only=True):
    """A one-time token: the address of the page, `#token=` and it sign in another browser."""

    token: str
    expires_in: int


async def sign_in(call: Call) -> Response:
    """Exchange a one-time token for a session."""
    body, api = await call.read(SignInBody), call.runtime.api
    digest, scope = digest_of(body.token), call.request.scope
    person = await call.services.logins.attempt(scope, partial(api.find_sign_in, digest))
    if person is None:
        raise ApiError(403, EXPIRED, code="link_expired")
    before = await _signed_in(call)
    if before is not None and before.namespace != person.namespace and not body.switch:
        text = f"You are signed in as {before.name}, and the link is for {person.name}."
        raise ApiError(409, text, code="other_person")
    session, secret = _new_session(call)
    stored = await api.sign_in(digest, session, digest_of(secret))
    if stored is None:
        raise ApiError(403, EXPIRED, code="link_expired")
    if before is not None:
        await api.revoke_token(before.id)
    return _welcome(call, stored, secret)


async def _signed_in(call: Call) -> Token | None:
    """Return the session of a request that needs none."""
    secret = session_secret(call.request.scope)
    found = None if secret is None else await call.runtime.api.find_token(digest_of(secret))
    return None if found is None or found.platform != WEB_PLATFORM else found


def _new_session(call: Call) -> tuple[Token, str]:
    """Return a new session, and its secret. A browser never keeps the secret that it had."""
    session = people.new_session(call.request.headers.get("user-agent", ""))
    return session, new_secret(SESSION_PREFIX)


def _welcome(call: Call, session: Token, secret: str) -> Response:
    response = json_response(_me(Caller(session)))
    cookie = session_cookie(call.request.scope, secret, people.SESSION_SECONDS)
    response.headers["Set-Cookie"] = cookie
    return response


def _me(caller: Caller) -> Me:
    token = caller.token
    return Me(
        id=token.id, platform=token.platform, user=caller.user_id, name=token.name,
        roles=token.roles, expires_at=token.expires_at,
    )  # fmt: skip


async def sign_out(call: Call) -> Response:
    """End the session of a request, if it has one."""
    found = await _signed_in(call)
    if found is not None:
        await call.runtime.api.revoke_token(found.id)
    response = json_response(SignedOut(found is not None))
    response.headers["Set-Cookie"] = expired_cookie(call.request.scope)
    return response


async def me(call: Call) -> Response:
    """Return who sends the request."""
    await call.verify()
    return json_response(_me(call.caller))


async def request_access(call: Call) -> Response:
    """Ask for access: returns a code for the operator."""
    body, visitors = await call.read(AccessBody), call.services.visitors
    secret = new_secret(people.REQUEST_PREFIX)
    code = None
    if visitors.asking.take(visitors.asking.bucket(network_of(call.request.scope))):
        code = await call.runtime.api.request_access(people.user_id_of(secret), body.name)
    if code is None:
        text = "Too many people have asked for access; try again in a few minutes."
        raise ApiError(429, text, code="too_many_requests", headers={"Retry-After": "60"})
    return json_response(AccessRequest(code=code, request=secret), 201)


async def check_access(call: Call) -> Response:
    """Sign in the visitor of a request for access, once an operator has let it in."""
    body, visitors = await call.read(CheckBody), call.services.visitors
    user_id = people.user_id_of(body.request)
    if not visitors.checking.take(visitors.checking.bucket(user_id)):
        text = "Ask at most once a second."
        raise ApiError(429, text, code="rate_limit_exceeded", headers={"Retry-After": "1"})
    session, secret = _new_session(call)
    find = partial(_find_access, call, user_id, session, secret)
    attempt = call.services.logins.attempt
    found: Token | Waiting | None = await attempt(call.request.scope, find)
    if found is None:
        raise ApiError(404, "The request has expired; ask again.", code="not_found")
    if isinstance(found, Waiting):
        return json_response(found, 202)
    return _welcome(call, found, secret)


async def _find_access(
    call: Call, user_id: str, session: Token, secret: str
) -> Token | Waiting | None:
    api = call.runtime.api
    stored = await api.sign_in_paired(user_id, session, digest_of(secret))
    if stored is not None:
        return stored
    return Waiting(waiting=True) if await api.asks_for_access(user_id) else None


async def sessions(call: Call) -> Response:
    """List the sessions of the person who is signed in; for operators those of everybody."""
    found = [_session(call, each) for each in await _sessions(call)]
    return json_response(SessionList(found))


async def _sessions(call: Call) -> list[Token]:
    """Return the sessions that the caller may see and revoke."""
    valid = set(await call.runtime.api.valid_tokens())
    caller = call.caller
    own = caller.token.namespace if caller.token.platform == WEB_PLATFORM else None
    return [
        each
        for each in reversed(await call.runtime.api.list_tokens())
        if each.platform == WEB_PLATFORM and each.id in valid
        if caller.has_role("operator") or each.namespace == own
    ]


def _session(call: Call, token: Token) -> WebSession:
    return WebSession(
        id=token.id, user=token.namespace, name=token.name, roles=token.roles,
        client=token.client, created_at=token.created_at, expires_at=token.expires_at,
        current=token.id == call.caller.id,
    )  # fmt: skip


async def revoke(call: Call) -> Response:
    """Revoke a session: it is refused at once, and its streams end."""
    wanted = call.path["session_id"]
    if wanted == call.caller.id:
        raise ApiError(400, "POST /api/sign-out ends this session.", code="invalid_value")
    found = next((each for each in await _sessions(call) if each.id == wanted), None)
    if found is None or await call.runtime.api.revoke_token(wanted) is None:
        raise not_found("such session")
    return json_response(_session(call, found))


async def create_link(call: Call) -> Response:
    """Return a one-time token with which the person signs in another browser."""
    if call.caller.token.platform != WEB_PLATFORM:
        raise ApiError(403, "Only a person who is signed in to the page can.", code="no_session")
    token = new_secret(people.LINK_PREFIX)
    await call.runtime.api.add_sign_in(digest_of(token), people.person_of(call.caller))
    return json_response(SignInLink(token=token, expires_in=LINK_SECONDS), 201)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST", path="/api/sign-in", handle=sign_in, role=None, body=SignInBody, result=Me,
        summary="Exchange a one-time token for a session of the page.",
    ),
    Endpoint(
        method="POST", path="/api/sign-out", handle=sign_out, role=None, result=SignedOut,
        summary="End the session of the page.",
    ),
    Endpoint(
        method="GET", path="/api/me", handle=me, result=Me, summary="Return who is signed in.",
    ),
    Endpoint(
        method="POST", path="/api/access-requests", handle=request_access, role=None,
        body=AccessBody, result=AccessRequest, status=201,
        summary="Ask for access to the page; an operator decides.",
    ),
    Endpoint(
        method="POST", path="/api/access-requests/check", handle=check_access, role=None,
        body=CheckBody, result=Me, other_results={202: Waiting},
        summary="Sign in once an operator has given access.",
    ),
    Endpoint(
        method="GET", path="/api/web-sessions", handle=sessions, result=SessionList,
        summary="List the sessions of the page.",
    ),
    Endpoint(
        method="DELETE", path="/api/web-sessions/{session_id}", handle=revoke, result=WebSession,
        summary="Revoke a session of the page.",
    ),
    Endpoint(
        method="POST", path="/api/sign-in-links", handle=create_link, result=SignInLink, status=201,
        summary="Return a one-time token that signs in another browser.",
    ),
)  # fmt: skip
