"""A tenant with something of everything, and requests of another one for it, by endpoint."""

from __future__ import annotations

import json
from urllib.parse import quote, unquote

import attrs
import trio

from hermes.events import ApprovalAsked
from hermes.messages import CallReport, Person
from hermes.testing import inspect
from tests.support.http import sign_in

CANARY = "canary7f3a"
SETTINGS = '{"format":"openai","provider":"p","model":"m","url":"","fields":{}}'
"""Of a recorded call of a model."""
STREAM_SECONDS = 0.2
"""How long an event stream that goes on is read."""


async def approving(turn):
    """Echo the message; ask for an approval if it says so. A call of a model is recorded."""
    turn.record(CallReport(settings=SETTINGS, rows=1, digest=None, started=0.0, ended=0.0))
    if "erase" in turn.text:
        asked = await turn.records.ask_approval(
            turn.session_key, "erase", json.dumps({"file": turn.text}), delivery="client"
        )
        turn.emit(ApprovalAsked(asked))
    return f"echo: {turn.text}"


def name_of(endpoint):
    """The name of an endpoint in `CASES`."""
    return f"{endpoint.method} {endpoint.path}"


@attrs.frozen(kw_only=True)
class Case:
    """A request that names something of another tenant."""

    url: str
    json: object = None
    params: dict = attrs.Factory(dict)
    files: dict | None = None
    status: frozenset = frozenset({404})
    """What may be the answer."""

    def expected(self, endpoint):
        """The statuses that the other tenant may get."""
        return {403} if endpoint.role in {"operator", "metrics"} else self.status

    def sent(self):
        """Everything that the request says."""
        return json.dumps([self.url, unquote(self.url), self.json, self.params], ensure_ascii=False)


@attrs.frozen(kw_only=True)
class Tenant:
    """What belongs to a tenant."""

    client: object
    word: str
    response: str
    conversation: str
    """The id of the conversation of the response."""
    item: str
    """The id of an item of that conversation."""
    file: str
    key: str
    """The session key of a conversation of /api, in which a tool call waits for approval."""
    attached: str
    """The id of a file of that conversation."""
    session: str
    message: int
    row: int
    approval: int
    web_session: str = "web_none"

    @classmethod
    async def prepare(cls, server, secret, word):
        """Create something of everything, each with this word in it."""
        client = server.http(secret, timeout=60)
        body = {"model": "hermes", "input": f"remember {word}"}
        response = (await client.post("/v1/responses", json=body)).json()
        conversation = response["conversation"]["id"]
        items = (await client.get(f"/v1/conversations/{conversation}/items")).json()
        upload = {"file": (f"{word}.txt", word.encode()), "purpose": (None, "user_data")}
        file = (await client.post("/v1/files", files=upload)).json()
        return cls(
            response=response["id"],
            conversation=conversation,
            item=items["data"][0]["id"],
            file=file["id"],
            **await cls._conversation(client, word),
        )

    @classmethod
    async def signed_in(cls, server, word):
        """Create what somebody has who is signed in to the page, to whom `/v1` is closed."""
        client = server.browser(timeout=60)
        person = Person(namespace=f"usr_{word}", name=word, role="user")
        session = await sign_in(server, client, person)
        return cls(
            response=f"resp_{word}",
            conversation=f"conv_{word}",
            item=f"msg_{word}",
            file=f"file_{word}",
            web_session=session["id"],
            **await cls._conversation(client, word),
        )

    @staticmethod
    async def _conversation(client, word):
        """Create a conversation of /api, and return what belongs to it."""
        created = await client.post("/api/conversations", json={"title": f"about {word}"})
        key = created.json()["session_key"]
        url = f"/api/conversations/{quote(key, safe='')}"
        sent = (await client.post(f"{url}/messages", json={"text": f"erase {word}"})).json()
        rows = (await client.get(f"{url}/history")).json()["messages"]
        upload = {"file": (f"{word}.txt", f"attached {word}".encode())}
        attached = (await client.post(f"{url}/files", files=upload)).json()
        [approval] = (await client.get(f"{url}/approvals")).json()["approvals"]
        return {
            "client": client,
            "word": word,
            "key": key,
            "attached": attached["parts"][0]["file"],
            "session": sent["session_id"],
            "message": sent["message_id"],
            "row": rows[0]["id"],
            "approval": approval["approval_id"],
        }

    def secrets(self):
        """What nobody else may see."""
        return [
            self.word, self.response, self.conversation, self.item, self.file, self.attached,
            self.key, quote(self.key, safe=""), self.session, self.web_session,
        ]  # fmt: skip

    def url(self, key=None):
        """The URL of its conversation."""
        return f"/api/conversations/{quote(key or self.key, safe='')}"


async def facts_of(tenant):
    """Return everything that the tenant sees of its own."""
    url = tenant.url()
    paths = (
        f"/v1/responses/{tenant.response}", f"/v1/conversations/{tenant.conversation}",
        f"/v1/conversations/{tenant.conversation}/items", "/v1/files",
        f"/v1/files/{tenant.file}/content",
        "/api/conversations", url, f"{url}/history", f"{url}/sessions", f"{url}/approvals",
        f"{url}/tools", f"{url}/messages/{tenant.message}",
    )  # fmt: skip
    facts = {}
    for path in paths:
        answer = await tenant.client.get(path)
        facts[path] = (answer.status_code, answer.text)
    return facts


async def rows_of(server):
    """Return all rows of the store as texts; each names its table, and a message its session key.

    Left out are indexes, the list of contents of files, and what a process notes for itself.
    """

    def read(tx):
        tables = [name for (name,) in tx.all("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {"outbox": "id, session_key, turn_id, lane, body"}  # its state changes later
        skipped = (
            "sqlite_", "search", "stems", "meta", "api_processes", "blobs", "contents", "turns",
            "session_contents",
        )  # fmt: skip
        rows = {
            f"{table} {row}"
            for table in tables
            if not table.startswith(skipped) and table not in {"arrivals", "messages", "turns"}
            for row in tx.all(f"SELECT {columns.get(table, '*')} FROM {table}")
        }
        sql = (
            "SELECT s.session_key, m.id, m.role, m.content FROM sessions s "
            "JOIN all_messages m ON m.id >> 32 = s.no"
        )
        turns = "SELECT s.session_key, t.* FROM sessions s JOIN turns t ON t.session_no = s.no"
        rows |= {f"turns {row}" for row in tx.all(turns)}
        return rows | {f"messages {row}" for row in tx.all(sql)}

    return await inspect(server.runtime).store.browse(read)


def foreign_changes(before, after, *names):
    """Return the rows that are new, changed or gone, and contain none of these names."""
    return sorted(row for row in before ^ after if not any(name in row for name in names))


async def send(client, endpoint, case):
    """Send a request; returns the status and the body, or what came of a stream at first."""
    options = {"json": case.json, "params": case.params, "files": case.files}
    options = {name: value for name, value in options.items() if value}
    if case.json is not None:
        options["json"] = case.json
    received = ""
    async with client.stream(endpoint.method, case.url, **options) as answer:
        limit = STREAM_SECONDS if "event-stream" in answer.headers.get("content-type", "") else 60
        with trio.move_on_after(limit):
            async for text in answer.aiter_text():
                received += text
    return answer.status_code, received


# The cases


def _responses(ann, _own):
    def ask(**more):
        return Case(url="/v1/responses", json={"model": "hermes", "input": "x", **more})

    part = {"type": "input_file", "file_id": ann.file}
    image = {"type": "input_image", "file_id": ann.file}
    item = f"mcpr_{ann.response[5:]}_{ann.approval}"
    decision = {"type": "mcp_approval_response", "approval_request_id": item, "approve": True}
    refused = frozenset({400, 404})
    return [
        ask(previous_response_id=ann.response),
        ask(conversation=ann.conversation),
        ask(conversation={"id": ann.conversation}),
        ask(conversation=ann.key),
        attrs.evolve(ask(input=[{"role": "user", "content": [part]}]), status=refused),
        attrs.evolve(ask(input=[{"role": "user", "content": [image]}]), status=refused),
        attrs.evolve(ask(input=[decision]), status=refused),
    ]


def _response(suffix="", **params):
    return lambda ann, _own: [
        Case(url=f"/v1/responses/{ann.response}{suffix}", params=each)
        for each in ({}, *([params] if params else []))
    ]


def _response_with(suffix, json):
    return lambda ann, _own: [Case(url=f"/v1/responses/{ann.response}{suffix}", json=json)]


def _conversation(suffix="", json=None):
    def cases(ann, _own):
        url = "/v1/conversations/{}" + suffix.format(item=ann.item)
        ids = (ann.conversation, quote(ann.key, safe=""))
        return [Case(url=url.format(id_), json=json) for id_ in ids]

    return cases


def _own_conversation(suffix="", json=None):
    """Like `_conversation`, without an id that its owner could not use either."""
    return lambda ann, own: _conversation(suffix, json)(ann, own)[:1]


def _deleted_item(ann, _own):
    url = f"/v1/conversations/{ann.conversation}/items/{ann.item}"
    return [Case(url=url, status=frozenset({400, 404}))]


def _completions(ann, _own):
    def ask(content="x", **more):
        body = {"model": "hermes", "messages": [{"role": "user", "content": content}], **more}
        return Case(url="/v1/chat/completions", json=body, status=frozenset({200}))

    part = {"type": "file", "file": {"file_id": ann.file}}
    names = (ann.conversation, f"name:{ann.conversation}", ann.key)
    return [
        *(ask(metadata={"conversation": name}) for name in names),
        attrs.evolve(ask([part]), status=frozenset({400, 404})),
    ]


def _files_of(ann, own):
    urls = (f"{ann.url()}/files/{ann.attached}", f"{ann.url(own)}/files/{ann.attached}")
    return [Case(url=url) for url in urls]


def _upload_to(ann, _own):
    return [Case(url=f"{ann.url()}/files", files={"file": ("x.txt", b"x")})]


def _file(suffix=""):
    return lambda ann, _own: [Case(url=f"/v1/files/{ann.file}{suffix}")]


def _one(suffix="", json=None, also=lambda _ann, _own: [], **params):
    """Return the cases of an endpoint of one conversation: that of the other tenant, and others."""

    def cases(ann, own):
        names = [ann.url(), ann.url(ann.key.replace(":dm:", ":dm::"))] if not params else []
        mine = [Case(url=f"{ann.url()}{suffix}", json=json, params=params)]
        odd = [Case(url=f"{name}{suffix}", json=json) for name in names[1:]]
        return [*mine, *([] if own == ann.key else odd), *also(ann, own)]

    return cases


def _listed(url, **params):
    return lambda _ann, _own: [Case(url=url, params=params, status=frozenset({200}))]


def _history(ann, own):
    return [Case(url=f"{ann.url(own)}/history", params={"session_id": ann.session})]


def _switch(ann, own):
    names = (ann.session, ann.session[:20], f"about {ann.word}")
    return [Case(url=f"{ann.url(own)}/switch", json={"target": name}) for name in names]


def _edit(ann, own):
    body = {"message": ann.row, "text": "x"}
    return [Case(url=f"{ann.url(own)}/edit", json=body, status=frozenset({400, 404}))]


def _branch(ann, own):
    body = {"before": ann.row}
    return [Case(url=f"{ann.url(own)}/branch", json=body, status=frozenset({400, 404}))]


def _message(ann, own):
    return [Case(url=f"{ann.url(own)}/messages/{ann.message}")]


def _messages(ann, own):
    part = {"type": "file", "file_id": ann.file}
    body = {"text": "x", "parts": [part]}
    return [Case(url=f"{ann.url(own)}/messages", json=body, status=frozenset({400, 404}))]


def _turn(suffix="", json=None):
    """Cases of a recorded turn: below the other tenant's key, and below the own one."""

    def cases(ann, own):
        end = f"/turns/{ann.message}{suffix}"
        return [Case(url=f"{ann.url(key)}{end}", json=json) for key in (None, own)]

    return cases


def _approval(ann, own):
    return [Case(url=f"{ann.url(own)}/approvals/{ann.approval}", json={"approve": True})]


def _nothing(url):
    """Return the case of an endpoint that names nothing of a tenant."""
    return lambda _ann, _own: [Case(url=url, status=frozenset({200}))]


def _named(url, rest=""):
    """Return the case of an endpoint for operators that names a conversation by its key."""
    return lambda ann, _own: [Case(url=f"{url}/{quote(ann.key, safe='')}{rest}")]


def _conversations(_ann, _own):
    return [Case(url="/api/conversations", json={"title": "mine"}, status=frozenset({201}))]


def _upload(_ann, _own):
    files = {"file": ("x.txt", b"x"), "purpose": (None, "user_data")}
    return [Case(url="/v1/files", files=files, status=frozenset({200}))]


ONE = "/api/conversations/{key}"
CASES = {
    "POST /v1/responses": _responses,
    "GET /v1/responses/{response_id}": _response("", stream="true"),
    "DELETE /v1/responses/{response_id}": _response(),
    "POST /v1/responses/{response_id}/cancel": _response("/cancel"),
    "POST /v1/responses/{response_id}/steer": _response_with("/steer", {"input": "x"}),
    "GET /v1/responses/{response_id}/input_items": _response("/input_items"),
    "POST /v1/conversations": lambda _ann, _own: [
        Case(url="/v1/conversations", json={}, status=frozenset({200}))
    ],
    "GET /v1/conversations/{conversation_id}": _own_conversation(),
    "POST /v1/conversations/{conversation_id}": _conversation("", {"metadata": {}}),
    "DELETE /v1/conversations/{conversation_id}": _conversation(),
    "GET /v1/conversations/{conversation_id}/items": _own_conversation("/items"),
    "POST /v1/conversations/{conversation_id}/items": _conversation(
        "/items", {"items": [{"role": "user", "content": "x"}]}
    ),
    "GET /v1/conversations/{conversation_id}/items/{item_id}": _own_conversation("/items/{item}"),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": _deleted_item,
    "POST /v1/chat/completions": _completions,
    "POST /api/tickets": _nothing("/api/tickets"),
    f"POST {ONE}/files": _upload_to,
    f"GET {ONE}/files/{{file_id}}": _files_of,
    "GET /metrics": _nothing("/metrics"),
    "GET /api/openapi.json": _nothing("/api/openapi.json"),
    "GET /v1/models": _nothing("/v1/models"),
    "GET /v1/models/{model_id:path}": _nothing("/v1/models/hermes"),
    "POST /v1/files": _upload,
    "GET /v1/files": _listed("/v1/files"),
    "GET /v1/files/{file_id}": _file(),
    "GET /v1/files/{file_id}/content": _file("/content"),
    "DELETE /v1/files/{file_id}": _file(),
    "GET /api/conversations": _listed("/api/conversations", q=CANARY),
    "POST /api/conversations": _conversations,
    f"GET {ONE}": _one(),
    f"PATCH {ONE}": _one(json={"title": "mine"}),
    f"DELETE {ONE}": _one(),
    f"GET {ONE}/history": _one("/history", also=_history),
    f"GET {ONE}/export": _one("/export"),
    f"GET {ONE}/sessions": _one("/sessions"),
    f"GET {ONE}/search": _one("/search", q=CANARY),
    "GET /api/search": _listed("/api/search", q=CANARY),
    "GET /api/sessions": _listed("/api/sessions"),
    f"GET {ONE}/events": _one("/events"),
    "GET /api/events": _listed("/api/events"),
    f"GET {ONE}/snapshot": _one("/snapshot"),
    f"POST {ONE}/messages": _one("/messages", {"text": "x"}, also=_messages),
    f"GET {ONE}/messages/{{message_id}}": _message,
    f"DELETE {ONE}/messages/{{message_id}}": _message,
    f"POST {ONE}/steer": _one("/steer", {"text": "x"}),
    f"POST {ONE}/edit": _one("/edit", {"message": 1, "text": "x"}, also=_edit),
    f"POST {ONE}/retry": _one("/retry", {}),
    f"GET {ONE}/turns": _one("/turns"),
    f"GET {ONE}/turns/{{turn_id}}": _turn(),
    f"GET {ONE}/turns/{{turn_id}}/calls/{{number}}/messages": _turn("/calls/0/messages"),
    f"GET {ONE}/turns/{{turn_id}}/calls/{{number}}/body": _turn("/calls/0/body"),
    f"POST {ONE}/turns/{{turn_id}}/repeat": _turn("/repeat", {}),
    f"POST {ONE}/interrupt": _one("/interrupt"),
    f"POST {ONE}/new": _one("/new", {}),
    f"POST {ONE}/switch": _one("/switch", {"target": "x"}, also=_switch),
    f"POST {ONE}/branch": _one("/branch", {}, also=_branch),
    f"POST {ONE}/undo": _one("/undo", {}),
    f"POST {ONE}/compress": _one("/compress", {}),
    f"POST {ONE}/close": _one("/close", {}),
    "GET /api/approvals": _listed("/api/approvals"),
    f"GET {ONE}/approvals": _one("/approvals"),
    f"POST {ONE}/approvals/{{number}}": _approval,
    f"GET {ONE}/tools": _one("/tools"),
    f"DELETE {ONE}/tools/{{tool}}": _one("/tools/erase"),
    f"GET {ONE}/usage": _one("/usage"),
    f"GET {ONE}/status": _one("/status"),
    "POST /hooks/{name}": lambda _ann, _own: [Case(url="/hooks/none", json={})],
    "GET /healthz": _nothing("/healthz"),
    "GET /readyz": _nothing("/readyz"),
    "POST /api/streams": lambda ann, _own: [
        Case(
            url="/api/streams",
            json={"streams": [{"path": f"{ann.url()}/events"}]},
            status=frozenset({200}),
        )
    ],
    "GET /api/choices": _nothing("/api/choices"),
    "GET /api/live/cache": _nothing("/api/live/cache"),
    "GET /api/live/cache/{key}": _named("/api/live/cache"),
    "GET /api/live/cache/{key}/turns/{turn_id}": _named("/api/live/cache", "/turns/1"),
    "GET /api/live/events": _nothing("/api/live/events"),
    "GET /api/live/lineage/{key}": _named("/api/live/lineage"),
    "GET /api/live/outbox": _nothing("/api/live/outbox"),
    "GET /api/live/summaries/{session_id}": lambda ann, _own: [
        Case(url=f"/api/live/summaries/{ann.session}")
    ],
    "POST /api/sign-in": lambda _ann, _own: [
        Case(url="/api/sign-in", json={"token": "x"}, status=frozenset({403}))
    ],
    "POST /api/sign-out": _nothing("/api/sign-out"),
    "GET /api/me": _nothing("/api/me"),
    "POST /api/access-requests": lambda _ann, _own: [
        Case(url="/api/access-requests", json={"name": ""}, status=frozenset({400}))
    ],
    "POST /api/access-requests/check": lambda _ann, _own: [
        Case(url="/api/access-requests/check", json={"request": "x"})
    ],
    "GET /api/web-sessions": _nothing("/api/web-sessions"),
    "DELETE /api/web-sessions/{session_id}": lambda ann, _own: [
        Case(url=f"/api/web-sessions/{ann.web_session}")
    ],
    "POST /api/sign-in-links": lambda _ann, _own: [
        Case(url="/api/sign-in-links", status=frozenset({201, 403}))
    ],
    "GET /": _nothing("/"),
    "GET /page/{digest}/{name:path}": lambda _ann, _own: [Case(url="/page/x/main.js")],
    "GET /api/usage": _nothing("/api/usage"),
    "GET /api/status": _nothing("/api/status"),
    "GET /api/pairings": _nothing("/api/pairings"),
    "POST /api/pairings": lambda _ann, _own: [
        Case(url="/api/pairings", json={"code": "AAAA-0001"}, status=frozenset({403}))
    ],
    "DELETE /api/principals/{platform}/{user_id}": _nothing("/api/principals/http/tok_1"),
}
"""Requests of another tenant, by method and path of the endpoint."""
