"""How the verbs of a store run: in a commit with others, alone, or as a read.

A verb is a descriptor, which makes a store function a method of a store.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from hermes.errors import StoreError
from hermes.messages import Inbound, InboxReply, Rotation, TurnCommit
from hermes.store.transaction import KeyedWork, Transaction, Work

_WITH_KEY = (Inbound, InboxReply, Rotation, TurnCommit)
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class SyncRunner(Protocol):
    """How a synchronous store runs its verbs."""

    def transact(self, work: Work[R], /) -> R: ...
    def transact_unflushed(self, work: Work[R], /) -> R: ...
    def transact_deferred(self, work: Work[R], /) -> R: ...
    def transact_alone(self, work: Work[R], /) -> R: ...
    def snapshot(self, work: Work[R], /) -> R: ...
    def browse(self, work: Work[R], /) -> R: ...
    def run_search(self, work: Work[R], /) -> R: ...
    def run_chunked(self, chunks: Generator[Work[S], S, R], /) -> R: ...


class AsyncRunner(Protocol):
    """How an asynchronous store runs its verbs."""

    def transact(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def transact_unflushed(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def transact_deferred(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def transact_alone(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def snapshot(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def browse(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def run_search(self, work: Work[R], /) -> Coroutine[object, object, R]: ...
    def run_chunked(self, chunks: Generator[Work[S], S, R], /) -> Coroutine[object, object, R]: ...


class _Verb(Generic[P, R]):
    """Descriptor: a store function as a method of a store.

    The method is created when a store is first asked for it, and cached in the store.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self._name = function.__name__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, store: None, owner: type) -> Self: ...
    @overload
    def __get__(self, store: SyncRunner, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, store: AsyncRunner, owner: type
    ) -> Callable[P, Coroutine[object, object, R]]: ...
    def __get__(self, store: SyncRunner | AsyncRunner | None, owner: type) -> object:
        if store is None:
            return self
        method = self._bind(store)
        method.__doc__ = self.__doc__
        method.__module__ = self.__module__
        method.__name__ = self._name
        method.__qualname__ = f"{owner.__qualname__}.{self._name}"
        vars(method)["__signature__"] = self.signature
        vars(store)[self._name] = method
        return method

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the method."""
        raise NotImplementedError

    def _bind(self, store: SyncRunner | AsyncRunner) -> Callable[P, object]:
        raise NotImplementedError


class _TransactionVerb(_Verb[P, R]):
    """A verb that runs in one transaction, which is the first parameter of its function."""

    def __init__(self, function: Callable[Concatenate[Transaction, P], R]) -> None:
        super().__init__(function)
        self._function = function

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        whole = inspect.signature(self._function)
        return whole.replace(parameters=[*whole.parameters.values()][1:])

    def _bind(self, store: SyncRunner | AsyncRunner) -> Callable[P, object]:
        function, run = self._function, self._runner_of(store)

        def method(*args: P.args, **kwargs: P.kwargs) -> object:
            return run(lambda tx: function(tx, *args, **kwargs))

        return method

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        raise NotImplementedError


class _WritingVerb(_TransactionVerb[P, R]):
    """A verb that writes. Its work says which session_key it is about, if it is about one."""

    def _bind(self, store: SyncRunner | AsyncRunner) -> Callable[P, object]:
        function, run, key_of = self._function, self._runner_of(store), _key_reader(self._function)

        def method(*args: P.args, **kwargs: P.kwargs) -> object:
            def work(tx: Transaction) -> R:
                return function(tx, *args, **kwargs)

            key = key_of(args, kwargs)
            return run(work if key is None else KeyedWork(work, key, (function, args, kwargs)))

        return method


def _key_reader(
    function: Callable[..., object],
) -> Callable[[tuple[object, ...], Mapping[str, object]], str | None]:
    """Return how to find the session_key in the arguments of a store function.

    It is the parameter `session_key`, or belongs to the first one, such as an `Inbound`.
    """
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    keyed = "session_key" in names
    name = "session_key" if keyed else next(iter(names), "")
    place = names.index(name) if keyed else 0

    def key_of(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        given = args[place] if place < len(args) else kwargs.get(name)
        key = given.session_key if isinstance(given, _WITH_KEY) else given if keyed else None
        # An invalid key is refused by the function.
        return key if isinstance(key, str) and key.isprintable() else None

    return key_of


class writes(_WritingVerb[P, R]):  # noqa: N801 - read as a word in the list below
    """A verb that writes; many are committed together."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.transact


class unflushed(_WritingVerb[P, R]):  # noqa: N801
    """A verb whose effect may be lost if the machine fails, but not if the process is killed."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.transact_unflushed


class deferred(_WritingVerb[P, R]):  # noqa: N801
    """A verb whose effect is stored with the next one of others, or without a flush soon after."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.transact_deferred


class alone(_WritingVerb[P, R]):  # noqa: N801
    """A verb that writes for long, and is committed by itself."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.transact_alone


class reads(_TransactionVerb[P, R]):  # noqa: N801
    """A verb that only reads."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.snapshot


class browses(_TransactionVerb[P, R]):  # noqa: N801
    """A verb that only reads, and may read much; it does not delay other reads."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.browse


class searches(_TransactionVerb[P, R]):  # noqa: N801
    """A verb that reads the search index, after it was brought up to date."""

    def _runner_of(self, store: SyncRunner | AsyncRunner) -> Callable[[Work[R]], object]:
        return store.run_search


class chunked(_Verb[P, R], Generic[P, S, R]):  # noqa: N801
    """A verb too long for one transaction: a generator of work, each piece in its own."""

    def __init__(self, function: Callable[P, Generator[Work[S], S, R]]) -> None:
        super().__init__(function)
        self._function = function

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self._function)

    def _bind(self, store: SyncRunner | AsyncRunner) -> Callable[P, object]:
        function, run = self._function, store.run_chunked

        def method(*args: P.args, **kwargs: P.kwargs) -> object:
            return run(function(*args, **kwargs))

        return method


class Chunked(Generic[S, R]):
    """The state of a chunked operation; the caller commits one piece after the other.

    The generator gets the result of each piece and returns the result of the operation.
    """

    def __init__(self, pieces: Generator[Work[S], S, R]) -> None:
        self._pieces = pieces
        self._work: Work[S] | None = next(pieces)
        self._result: list[R] = []
        self._done = 0

    def next(self) -> Work[S] | None:
        """Return the work to commit now, or None at the end."""
        return self._work

    def done(self, value: S) -> None:
        """Continue after the work was committed with this result."""
        self._done += 1
        try:
            self._work = self._pieces.send(value)
        except StopIteration as stop:
            self._work = None
            self._result.append(stop.value)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Make an error in the block say how many pieces are committed already."""
        try:
            yield
        except StoreError as error:
            if self._done == 0:
                raise
            text = f"stopped after {self._done} steps, which stay; repeat it to go on ({error})"
            raise type(error)(text) from error

    def result(self) -> R:
        """Return the result of the operation."""
        [result] = self._result
        return result
