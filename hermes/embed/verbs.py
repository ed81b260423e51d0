"""The verbs of a runtime for hosts that are not on Trio, listed once.

Each list names the methods of a Trio class. The classes of both hosts inherit the same lists, and
the descriptors give each its own form, with the signature and the docstring of the original.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from anyio.from_thread import BlockingPortal

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.runtime import AdapterState, Runtime

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class BlockingProxy(Generic[T]):
    """A Trio object in another thread, whose verbs block the calling thread."""

    def __init__(self, portal: BlockingPortal, target: T) -> None:
        self._portal = portal
        self._target = target

    def _call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the runtime's thread and wait; Ctrl-C here cancels it there."""
        future = self._portal.start_task_soon(function)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class AsyncioProxy(Generic[T]):
    """A Trio object in another thread, whose verbs are awaited on an asyncio loop."""

    def __init__(self, portal: BlockingPortal, target: T) -> None:
        self._portal = portal
        self._target = target

    async def _call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the runtime's thread; cancelled here, it is cancelled there."""
        return await asyncio.wrap_future(self._portal.start_task_soon(function))


class verb(Generic[T, P, R]):  # noqa: N801 - used like a decorator
    """A method of a Trio class, async or not, for both kinds of proxies."""

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
    def __get__(self, proxy: Any, owner: object) -> Any:
        if proxy is None:
            return self
        method = MethodType(self._method, proxy._target)  # noqa: SLF001

        @functools.wraps(method)
        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return proxy._call(lambda: method(*args, **kwargs))  # noqa: SLF001

        return bound


def plain(method: Callable[Concatenate[T, P], R]) -> verb[T, P, R]:
    """A method of a Trio class that does not wait, but must run in the runtime's thread."""

    @functools.wraps(method)
    async def awaitable(target: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(target, *args, **kwargs)

    return verb(awaitable)


class RuntimeVerbs:
    """The verbs of `Runtime` that wait."""

    ask = verb(Runtime.ask)
    submit = verb(Runtime.submit)
    is_answered = verb(Runtime.is_answered)
    wait_hooks = verb(Runtime.wait_hooks)
    drain = verb(Runtime.drain)


class ConversationVerbs:
    """The verbs of `Conversation`."""

    ask = verb(Conversation.ask)
    steer = verb(Conversation.steer)
    interrupt = verb(Conversation.interrupt)
    retry = verb(Conversation.retry)
    new = verb(Conversation.new)
    switch = verb(Conversation.switch)
    branch = verb(Conversation.branch)
    undo = verb(Conversation.undo)
    compress = verb(Conversation.compress)
    close = verb(Conversation.close)
    set_agent = verb(Conversation.set_agent)
    title = verb(Conversation.title)
    set_title = verb(Conversation.set_title)
    status = verb(Conversation.status)
    snapshot = plain(Conversation.snapshot)
    history = verb(Conversation.history)
    sessions = verb(Conversation.sessions)
    search = verb(Conversation.search)


class AdminVerbs:
    """The verbs of `Admin`."""

    sessions = verb(Admin.sessions)
    find = verb(Admin.find)
    messages = verb(Admin.messages)
    delete = verb(Admin.delete)
    running_turns = plain(Admin.running_turns)
    statistics = verb(Admin.statistics)
    passivate = plain(Admin.passivate)


class AdapterStateVerbs:
    """The verbs of `AdapterState`."""

    get = verb(AdapterState.get)
    set = verb(AdapterState.set)
