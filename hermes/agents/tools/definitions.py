"""`tool` and `Tool`: a typed Python function as a model sees it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, overload

import attrs

from hermes.agents.tools.schema import Signature
from hermes.messages import JsonObject

TIMEOUT = 300.0
MAX_OUTPUT = 50_000
MIN_MAX_OUTPUT = 200
OMITTED = "\n[{omitted} of {total} characters omitted]"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@attrs.frozen(kw_only=True)
class Tool:
    """A function that a model may call. Made by `tool`; it can still be called as the function."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    once: bool = False
    """Each call is recorded before it runs, and not repeated if the turn runs again."""
    approval: bool = False
    """A call needs the user's approval of exactly its arguments; implies `once`."""
    platforms: frozenset[str] | None = None
    """The platforms on which the tool is available; None: all."""
    timeout: float = TIMEOUT
    """Maximum duration of a call in seconds."""
    max_output: int = MAX_OUTPUT
    """Maximum length of the output in characters."""
    on_host_loop: bool = False
    """Whether the function runs on the loop of an asyncio host."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @property
    def schema(self) -> JsonObject:
        """Name, description and parameters, as a model gets them."""
        return {
            "name": self.name,
            "description": self.signature.description,
            "parameters": self.signature.parameters,
        }

    def is_for(self, platform: str) -> bool:
        """Whether the tool is available on a platform."""
        return self.platforms is None or platform in self.platforms

    def truncate(self, text: str) -> str:
        """Cut a text to `max_output` characters, with a note of how many are omitted."""
        if len(text) <= self.max_output:
            return text
        room = self.max_output - len(OMITTED.format(omitted=len(text), total=len(text)))
        return text[:room] + OMITTED.format(omitted=len(text) - room, total=len(text))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    once: bool = False,
    approval: bool = False,
    platforms: Iterable[str] | None = None,
    timeout: float = TIMEOUT,
    max_output: int = MAX_OUTPUT,
    on_host_loop: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Decorator that makes a tool of a function, as `@tool` or with options.

    The schema for the model comes from the type annotations and the docstring. Plain functions run
    in a thread. A parameter that is annotated with `Turn`, or called `turn` without an annotation,
    receives the running turn and is not shown to the model.

    Args:
        name: The name for the model; by default that of the function.
        once: Record each call before it runs. If the turn runs again after a crash, the call is
            not repeated: the model gets the earlier result, or a note that it is unknown.
        approval: Run a call only after the user has approved exactly these arguments; implies
            `once`.
        platforms: Names of the platforms on which the tool is available; by default all.
        timeout: Maximum duration of a call in seconds.
        max_output: Maximum length of the output in characters.
        on_host_loop: Run a coroutine function on the loop of the program that has opened the
            runtime, if it is an asyncio program. Other coroutine functions run on Trio.

    Raises `TypeError` if a model cannot call the function, and `ValueError` for invalid options.
    """
    if function is not None:
        return _make_tool(function)
    return lambda function: _make_tool(function, **options)


def _make_tool(  # noqa: PLR0913 - the options of a tool
    function: Callable[..., Any],
    *,
    name: str | None = None,
    once: bool = False,
    approval: bool = False,
    platforms: Iterable[str] | None = None,
    timeout: float = TIMEOUT,
    max_output: int = MAX_OUTPUT,
    on_host_loop: bool = False,
) -> Tool:  # fmt: skip
    name = str(name or getattr(function, "__name__", ""))  # a functools.partial has no name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a tool needs a name of 1 to 64 letters, digits, underscores or hyphens, not {name!r}"
        )
    if isinstance(platforms, str):
        raise TypeError(f"tool {name}: platforms must be a list of names, such as [{platforms!r}]")
    if not timeout > 0:
        raise ValueError(f"tool {name}: timeout must be positive, not {timeout!r}")
    if max_output < MIN_MAX_OUTPUT:
        raise ValueError(f"tool {name}: max_output must be at least {MIN_MAX_OUTPUT}")
    if on_host_loop and not inspect.iscoroutinefunction(function):
        raise TypeError(f"tool {name}: only a coroutine function can run on the host's loop")
    return Tool(
        name=name,
        function=function,
        signature=Signature.of(function, name),
        once=once or approval,
        approval=approval,
        platforms=None if platforms is None else frozenset(platforms),
        timeout=timeout,
        max_output=max_output,
        on_host_loop=on_host_loop,
    )
