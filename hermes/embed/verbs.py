"""The verbs of a runtime for hosts that are not on Trio, listed once.

Each list names the methods of a Trio class. The classes of both hosts inherit the same lists, and
the descriptors give each its own form, with the signature and the docstring of the original.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from hermes.actors.admin import AdapterState, Admin, ApiRecords
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.actors.stream import Stream
from hermes.agents.remote_runtime import LoopFile, ThreadFile
from hermes.embed.asyncio_bridge import set_host_agent
from hermes.embed.attachments import has_attachments, with_attachments
from hermes.embed.proxies import (
    AsyncioProxy,
    AsyncioStream,
    AsyncioSubscription,
    BlockingProxy,
    BlockingStream,
    BlockingSubscription,
    Proxy,
)
from hermes.protocols import FileReader

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")


class verb(Generic[T, P, R]):  # noqa: N801 - used like a decorator
    """An async method of a Trio class, for both kinds of proxies."""

    def __init__(self, method: Callable[Concatenate[T, P], Awaitable[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: object) -> verb[T, P, R]: ...
    @overload
    def __get__(self, proxy: BlockingProxy[T], owner: object) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, proxy: AsyncioProxy[T], owner: object
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, proxy: BlockingProxy[T] | AsyncioProxy[T] | None, owner: object) -> object:
        if proxy is None:
            return self
        return _bind(self._method, proxy, proxy._call, proxy._call_to_end)  # noqa: SLF001


class file_verb(Generic[T, P]):  # noqa: N801 - used like a decorator
    """An async method of a Trio class that returns a `FileReader`, for both kinds of proxies."""

    def __init__(self, method: Callable[Concatenate[T, P], Awaitable[FileReader]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: object) -> file_verb[T, P]: ...
    @overload
    def __get__(self, proxy: BlockingProxy[T], owner: object) -> Callable[P, ThreadFile]: ...
    @overload
    def __get__(
        self, proxy: AsyncioProxy[T], owner: object
    ) -> Callable[P, Coroutine[Any, Any, LoopFile]]: ...
    def __get__(self, proxy: BlockingProxy[T] | AsyncioProxy[T] | None, owner: object) -> object:
        if proxy is None:
            return self
        return _bind(self._method, proxy, proxy._open_file)  # noqa: SLF001


class stream_verb(Generic[T, P]):  # noqa: N801 - used like a decorator
    """A method of a Trio class that returns a `Stream`, for both kinds of proxies."""

    def __init__(self, method: Callable[Concatenate[T, P], Stream]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: object) -> stream_verb[T, P]: ...
    @overload
    def __get__(self, proxy: BlockingProxy[T], owner: object) -> Callable[P, BlockingStream]: ...
    @overload
    def __get__(self, proxy: AsyncioProxy[T], owner: object) -> Callable[P, AsyncioStream]: ...
    def __get__(self, proxy: BlockingProxy[T] | AsyncioProxy[T] | None, owner: object) -> object:
        if proxy is None:
            return self
        stream = BlockingStream if isinstance(proxy, BlockingProxy) else AsyncioStream
        return _bind(self._method, proxy, functools.partial(stream, proxy._portal))  # noqa: SLF001


class follow_verb(Generic[T, P]):  # noqa: N801 - used like a decorator
    """A method of a Trio class that returns a `Subscription`, for both kinds of proxies."""

    def __init__(self, method: Callable[Concatenate[T, P], Subscription]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, proxy: None, owner: object) -> follow_verb[T, P]: ...
    @overload
    def __get__(
        self, proxy: BlockingProxy[T], owner: object
    ) -> Callable[P, BlockingSubscription]: ...
    @overload
    def __get__(
        self, proxy: AsyncioProxy[T], owner: object
    ) -> Callable[P, AsyncioSubscription]: ...
    def __get__(self, proxy: BlockingProxy[T] | AsyncioProxy[T] | None, owner: object) -> object:
        if proxy is None:
            return self
        blocking = isinstance(proxy, BlockingProxy)
        events = BlockingSubscription if blocking else AsyncioSubscription
        return _bind(self._method, proxy, functools.partial(events, proxy._portal))  # noqa: SLF001


def plain(method: Callable[Concatenate[T, P], R]) -> verb[T, P, R]:
    """A method of a Trio class that does not wait, but must run in the runtime's thread."""

    @functools.wraps(method)
    async def awaitable(target: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(target, *args, **kwargs)

    return verb(awaitable)


def _bind(
    method: Callable[Concatenate[T, P], R],
    proxy: Proxy[T],
    run: Callable[[Callable[[], R]], V],
    run_with_files: Callable[[Callable[[], R]], V] | None = None,
) -> Callable[P, V]:
    """Return a function like the method, which passes the call to `run` for the other thread.

    Calls with attachments are passed to `run_with_files`, if there is one.
    """
    original: Callable[..., R] = MethodType(method, proxy._target)  # noqa: SLF001

    @functools.wraps(original)
    def bound(*args: P.args, **kwargs: P.kwargs) -> V:
        if not has_attachments(args, kwargs):
            return run(lambda: original(*args, **kwargs))
        call = functools.partial(with_attachments, original, args, kwargs)
        return (run_with_files or run)(call)

    vars(bound).pop("__signature__", None)  # a copy from the function, with `self`
    return bound


class RuntimeVerbs:
    """The verbs of `Runtime`, except those whose results differ between hosts."""

    ask: Final = verb(Runtime.ask)
    stream: Final = stream_verb(Runtime.stream)
    follow: Final = follow_verb(Runtime.follow)
    submit: Final = verb(Runtime.submit)
    wait: Final = verb(Runtime.wait)
    reply_of: Final = verb(Runtime.reply_of)
    receipt_of: Final = verb(Runtime.receipt_of)
    withdraw: Final = verb(Runtime.withdraw)
    post: Final = verb(Runtime.post)
    is_answered: Final = verb(Runtime.is_answered)
    mark_shown: Final = plain(Runtime.mark_shown)
    wait_hooks: Final = verb(Runtime.wait_hooks)
    drain: Final = verb(Runtime.drain)


class ConversationVerbs(Proxy[Conversation]):
    """The verbs of `Conversation`."""

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._target.session_key

    ask: Final = verb(Conversation.ask)
    stream: Final = stream_verb(Conversation.stream)
    follow: Final = follow_verb(Conversation.follow)
    reply_of: Final = verb(Conversation.reply_of)
    post: Final = verb(Conversation.post)
    steer: Final = verb(Conversation.steer)
    put_file: Final = verb(Conversation.put_file)
    open_file: Final = file_verb(Conversation.open_file)
    read_file: Final = verb(Conversation.read_file)
    save_file: Final = verb(Conversation.save_file)
    interrupt: Final = verb(Conversation.interrupt)
    retry: Final = verb(Conversation.retry)
    new: Final = verb(Conversation.new)
    switch: Final = verb(Conversation.switch)
    branch: Final = verb(Conversation.branch)
    undo: Final = verb(Conversation.undo)
    compress: Final = verb(Conversation.compress)
    close: Final = verb(Conversation.close)
    set_agent: Final = verb(set_host_agent)
    settings: Final = verb(Conversation.settings)
    configure: Final = verb(Conversation.configure)
    title: Final = verb(Conversation.title)
    set_title: Final = verb(Conversation.set_title)
    status: Final = verb(Conversation.status)
    snapshot: Final = plain(Conversation.snapshot)
    history: Final = verb(Conversation.history)
    sessions: Final = verb(Conversation.sessions)
    archive: Final = verb(Conversation.archive)
    unarchive: Final = verb(Conversation.unarchive)
    search: Final = verb(Conversation.search)


class AdminVerbs:
    """The verbs of `Admin`."""

    sessions: Final = verb(Admin.sessions)
    find: Final = verb(Admin.find)
    switch: Final = verb(Admin.switch)
    messages: Final = verb(Admin.messages)
    archive: Final = verb(Admin.archive)
    unarchive: Final = verb(Admin.unarchive)
    delete: Final = verb(Admin.delete)
    running_turns: Final = plain(Admin.running_turns)
    statistics: Final = verb(Admin.statistics)
    commit_seconds: Final = plain(Admin.commit_seconds)
    passivate: Final = plain(Admin.passivate)
    roles: Final = plain(Admin.roles)


class AdapterStateVerbs:
    """The verbs of `AdapterState`."""

    receive: Final = verb(AdapterState.receive)
    get: Final = verb(AdapterState.get)
    set: Final = verb(AdapterState.set)


class ApiRecordsVerbs:
    """The verbs of `ApiRecords`."""

    get_response: Final = verb(ApiRecords.get_response)
    find_response: Final = verb(ApiRecords.find_response)
    response_to: Final = verb(ApiRecords.response_to)
    attach: Final = verb(ApiRecords.attach)
    open_elsewhere: Final = verb(ApiRecords.open_elsewhere)
    begin_answer: Final = verb(ApiRecords.begin_answer)
    end_connection: Final = verb(ApiRecords.end_connection)
    record_process: Final = verb(ApiRecords.record_process)
    record_items: Final = verb(ApiRecords.record_items)
    delete_response: Final = verb(ApiRecords.delete_response)
    list_responses: Final = verb(ApiRecords.list_responses)
    delete_responses: Final = verb(ApiRecords.delete_responses)
    cancel_turn: Final = verb(ApiRecords.cancel_turn)
    add_messages: Final = verb(ApiRecords.add_messages)
    waiting_calls: Final = verb(ApiRecords.waiting_calls)
    current_agent: Final = plain(ApiRecords.current_agent)
    list_agents: Final = plain(ApiRecords.list_agents)
    attachment_limits: Final = plain(ApiRecords.attachment_limits)
    find_file: Final = verb(ApiRecords.find_file)
    list_files: Final = verb(ApiRecords.list_files)
    keep_file: Final = verb(ApiRecords.keep_file)
    copy_file: Final = verb(ApiRecords.copy_file)
    delete_file: Final = verb(ApiRecords.delete_file)
    list_branches: Final = verb(ApiRecords.list_branches)
    add_token: Final = verb(ApiRecords.add_token)
    find_token: Final = verb(ApiRecords.find_token)
    valid_tokens: Final = verb(ApiRecords.valid_tokens)
    valid_digests: Final = verb(ApiRecords.valid_digests)
    list_tokens: Final = verb(ApiRecords.list_tokens)
    revoke_token: Final = verb(ApiRecords.revoke_token)
    add_sign_in: Final = verb(ApiRecords.add_sign_in)
    find_sign_in: Final = verb(ApiRecords.find_sign_in)
    sign_in: Final = verb(ApiRecords.sign_in)
    sign_in_paired: Final = verb(ApiRecords.sign_in_paired)
    request_access: Final = verb(ApiRecords.request_access)
    asks_for_access: Final = verb(ApiRecords.asks_for_access)
    clear_sign_ins: Final = verb(ApiRecords.clear_sign_ins)
    wait_revoked: Final = verb(ApiRecords.wait_revoked)
    conversations: Final = verb(ApiRecords.conversations)
    view: Final = verb(ApiRecords.view)
    stamps: Final = verb(ApiRecords.stamps)
    delete_conversation: Final = verb(ApiRecords.delete_conversation)
    search: Final = verb(ApiRecords.search)
    outcome: Final = verb(ApiRecords.outcome)
    approvals: Final = verb(ApiRecords.approvals)
    approval: Final = verb(ApiRecords.approval)
    allowed_tools: Final = verb(ApiRecords.allowed_tools)
    revoke_tool: Final = verb(ApiRecords.revoke_tool)
    usage: Final = verb(ApiRecords.usage)
    spent: Final = verb(ApiRecords.spent)
    past_turns: Final = verb(ApiRecords.past_turns)
    turns_of_rows: Final = verb(ApiRecords.turns_of_rows)
    past_turn: Final = verb(ApiRecords.past_turn)
    call_rows: Final = verb(ApiRecords.call_rows)
    rebuild_call: Final = verb(ApiRecords.rebuild_call)
    repeat_turn: Final = verb(ApiRecords.repeat_turn)
    lanes: Final = verb(ApiRecords.lanes)
    pulse: Final = verb(ApiRecords.pulse)
    cluster_view: Final = verb(ApiRecords.cluster_view)
    costs_today: Final = verb(ApiRecords.costs_today)
    lane_rows: Final = verb(ApiRecords.lane_rows)
    session_family: Final = verb(ApiRecords.session_family)
    summary_rows: Final = verb(ApiRecords.summary_rows)
    model_calls: Final = verb(ApiRecords.model_calls)
    cached_conversations: Final = verb(ApiRecords.cached_conversations)
    watch_actors: Final = plain(ApiRecords.watch_actors)
    live_runtime: Final = plain(ApiRecords.live_runtime)
    commits_by_second: Final = plain(ApiRecords.commits_by_second)
    rebuilds: Final = plain(ApiRecords.rebuilds)
    turn_events: Final = plain(ApiRecords.turn_events)
    pairings: Final = verb(ApiRecords.pairings)
    principals: Final = verb(ApiRecords.principals)
    approve_pairing: Final = verb(ApiRecords.approve_pairing)
    unpair: Final = verb(ApiRecords.unpair)
    process_id: Final = plain(ApiRecords.process_id)
    node_id: Final = plain(ApiRecords.node_id)
    health: Final = verb(ApiRecords.health)
    waiting_approvals: Final = verb(ApiRecords.waiting_approvals)
    recent_rows: Final = plain(ApiRecords.recent_rows)
    published: Final = plain(ApiRecords.published)
    has_other_nodes: Final = plain(ApiRecords.has_other_nodes)
    is_elsewhere: Final = plain(ApiRecords.is_elsewhere)
    progress: Final = plain(ApiRecords.progress)
    actors: Final = plain(ApiRecords.actors)
