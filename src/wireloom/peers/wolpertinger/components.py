"""Components: classes whose decorated, typed methods peers can call; and typed calls of theirs.

    @component("Calculator")
    class Calculator:
        @method
        async def Add(self, a: int, b: int) -> int:
            return a + b

    async with wireloom.serve("wolpertinger://127.0.0.1:0", Components(Calculator())) as server:
        ...
    sum = await peer.call("Calculator", "Add", 2, 3)

Components' names are compared without case, methods' with. A call is checked before the method runs: the component
(error 304), the method (303), the trust of the caller (201), the parameters (305). What the method returns is checked
as well (306). A method declared `-> None` has no response value, and no response is sent. Work that takes long is told
to the caller by Heartbeats, which the session sends by itself.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import types
import typing
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, overload

from wireloom.model import Authenticity, BodyError, ConfigError, Kind, Message, RequestFailed, message_of
from wireloom.peers.handlers import Handler, Result
from wireloom.protocols.wolpertinger import layer2, messages, values
from wireloom.protocols.wolpertinger.refusal import ErrorCode
from wireloom.protocols.wolpertinger.values import Int32, Int64, Structured, UInt64, Value

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

__all__ = ["Components", "Int32", "Int64", "Structured", "UInt64", "component", "method"]

Function = TypeVar("Function", bound=Callable[..., object])
Class = TypeVar("Class", bound=type)

_REQUEST, _RESPONSE, _NOBODY = Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE
LARGE = 16 * 1024
"""Bodies of at least this many bytes are decoded on a thread."""
_MANY = 500
"""Lists of at least this many values are encoded on a thread."""
_INTEGERS = ("int32", "int64", "uint64")
_ACCEPTS: dict[object, tuple[str, ...]] = {
    bool: ("boolean",),
    int: _INTEGERS,
    Int32: ("int32",),
    Int64: ("int64",),
    UInt64: ("uint64",),
    float: ("double", *_INTEGERS),
    str: ("string",),
    uuid.UUID: ("guid",),
    datetime.datetime: ("dateTime",),
    Structured: values.STRUCTURED,
    list: ("list",),
    object: values.TYPES,
    typing.Any: values.TYPES,
}
"""The value types that each annotation accepts."""
_FAILURES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (PermissionError, ErrorCode.NOT_AUTHORISED),
    (FileNotFoundError, ErrorCode.ITEM_NOT_FOUND),
    (NotImplementedError, ErrorCode.METHOD_NOT_FOUND),
)
"""Error codes by exception class. `RequestFailed` contains its own code; all other exceptions are 100."""


def failed(code: ErrorCode) -> RequestFailed:
    """The error answer to a call.

    >>> str(failed(ErrorCode.NOT_AUTHORISED))
    'request failed with 201'
    """
    return RequestFailed(str(int(code)))


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@method` records about a function."""

    name: str
    trust: int
    thread: bool


@overload
def method(function: Function, /) -> Function: ...
@overload
def method(*, name: str = "", trust: int = 0, thread: bool = False) -> Callable[[Function], Function]: ...
def method(
    function: Function | None = None, /, *, name: str = "", trust: int = 0, thread: bool = False
) -> Function | Callable[[Function], Function]:
    """Decorator: peers may call this method.

    - `name` is its name on the wire, if not that of the function.
    - `trust` is the level of trust a caller needs.
    - `thread` runs a function that blocks in a thread of its own.

    Parameters and result are checked against their annotations: bool, int (or Int32, Int64, UInt64), float, str, UUID,
    datetime, Structured, list, list[...], object, unions of these. A keyword-only parameter `peer` gets the caller.
    """

    def mark(function: Function) -> Function:
        function.__wireloom_method__ = _Mark(name or function.__name__, trust, thread)  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def component(name: str) -> Callable[[Class], Class]:
    """Decorator: the name of a component, if not that of its class."""

    def mark(class_: Class) -> Class:
        class_.__wireloom_component__ = name  # type: ignore[attr-defined]
        return class_

    return mark


@dataclass(frozen=True, slots=True)
class _Method:
    """A method that is ready to be called."""

    function: Callable[..., object]
    mark: _Mark
    parameters: tuple[object, ...]
    """The annotations of the parameters, in order."""
    required: int
    more: object
    """The annotation of `*args`; None if there is none."""
    wants_peer: bool
    returns: object

    @property
    def is_void(self) -> bool:
        return self.returns is None


class Components:
    """A handler that passes calls to components. Other messages go to `fallback`, if there is one."""

    def __init__(self, *components: object, fallback: Handler | None = None) -> None:
        self._methods: dict[str, dict[str, _Method]] = {}
        self._fallback = fallback
        for each in components:
            name = getattr(type(each), "__wireloom_component__", type(each).__name__)
            if name.lower() in self._methods or name.lower() in ("core", "authentication"):
                raise ConfigError(f"there is a component {name!r} already; name this one with @component")
            found = _methods_of(each)
            if not found:
                raise ConfigError(f"component {name!r} has no method with @method")
            self._methods[name.lower()] = found

    def __call__(self, message: Message, peer: Peer) -> object:
        """Run the method that a message names."""
        topic = message.topic or ""
        name = message.attributes.get("component", topic.rpartition(".")[0])
        found = self._methods.get(name.lower()) if message.kind is _REQUEST else None
        if found is None or not topic.startswith(name + "."):
            if self._fallback is not None:
                return self._fallback(message, peer)
            if message.kind is _REQUEST:
                raise failed(ErrorCode.COMPONENT_NOT_FOUND)
            return None
        called = found.get(topic[len(name) + 1 :])
        if called is None:
            raise failed(ErrorCode.METHOD_NOT_FOUND)
        if getattr(peer.session, "trust", 0) < called.mark.trust:
            raise failed(ErrorCode.NOT_AUTHORISED)
        if len(message.body) >= LARGE:
            return _run_aside(called, message, peer)
        return _run(called, _arguments(called, message), peer)


class _Codes:
    """A context that turns exceptions into error answers with a code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _raise_code(error)


def _raise_code(error: BaseException | None) -> None:
    for known, code in _FAILURES:
        if isinstance(error, known):
            raise failed(code) from error


def _methods_of(instance: object) -> dict[str, _Method]:
    found: dict[str, _Method] = {}
    for name, function in inspect.getmembers(instance, callable):
        mark = getattr(function, "__wireloom_method__", None)
        if not isinstance(mark, _Mark):
            continue
        if mark.name in found:
            raise ConfigError(f"{type(instance).__name__} has two methods named {mark.name!r}")
        found[mark.name] = _prepared(function, mark, f"{type(instance).__name__}.{name}")
    return found


def _prepared(function: Callable[..., object], mark: _Mark, name: str) -> _Method:
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"{name}: an annotation cannot be resolved: {error}") from None
    parameters: list[object] = []
    required, more, wants_peer = 0, None, False
    for each in inspect.signature(function).parameters.values():
        annotation = hints.get(each.name, object)
        if each.kind is each.KEYWORD_ONLY and each.name == "peer":
            wants_peer = True
            continue
        if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD):
            if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
                raise ConfigError(f"{name}: parameter {each.name!r} can only be named, but calls have no names")
            continue
        _check_annotation(annotation, f"{name}: parameter {each.name!r}")
        if each.kind is each.VAR_POSITIONAL:
            more = annotation
        else:
            parameters.append(annotation)
            required += each.default is each.empty
    returns = hints.get("return", object)
    if typing.get_origin(returns) in (AsyncIterator, AsyncGenerator):
        returns = object
    returns = None if returns is types.NoneType else returns
    if returns is not None:
        _check_annotation(returns, f"{name}: the result")
    return _Method(function, mark, tuple(parameters), required, more, wants_peer, returns)


def _check_annotation(annotation: object, what: str) -> None:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for each in typing.get_args(annotation):
            if each is not types.NoneType:
                _check_annotation(each, what)
    elif origin is list:
        _check_annotation(typing.get_args(annotation)[0], what)
    elif annotation not in _ACCEPTS:
        known = ", ".join(each.__name__ for each in _ACCEPTS if isinstance(each, type))
        raise ConfigError(f"{what} is annotated {annotation!r}, which calls cannot carry; known: {known}, list[...]")


def accept(value: Value, annotation: object) -> object:
    """The Python value for an annotation. Raises ValueError if the annotation does not accept the value.

    >>> accept(Value("int32", 7), int), accept(Value("int32", 7), float)
    (7, 7.0)
    """
    accepted = _ACCEPTS.get(annotation)
    if accepted is not None:
        if value.type not in accepted:
            raise ValueError(f"a {value.type} is no {getattr(annotation, '__name__', annotation)}")
        python = values.to_python(value)
        return float(python) if annotation is float and isinstance(python, int) else python
    if typing.get_origin(annotation) is list:
        if not isinstance(value.data, tuple):
            raise ValueError(f"a {value.type} is no list")
        return [accept(each, typing.get_args(annotation)[0]) for each in value.data]
    for each in typing.get_args(annotation):
        try:
            return accept(value, each)
        except ValueError:
            continue
    raise ValueError(f"a {value.type} is none of {annotation}")


def give(python: object, annotation: object) -> Value:
    """The value to send for a Python value. Raises BodyError if it does not match its annotation."""
    if annotation is str and python.__class__ is str:
        return values.from_python(python)
    if annotation in (Int32, Int64, UInt64) and type(python) is int:
        python = typing.cast(type[int], annotation)(python)
    elif annotation is float and type(python) is int:
        python = float(python)
    elif typing.get_origin(annotation) is list and isinstance(python, list | tuple):
        return Value("list", tuple([give(each, typing.get_args(annotation)[0]) for each in python]))
    value = values.from_python(python)
    try:
        accept(value, annotation)
    except ValueError as error:
        raise BodyError(str(error)) from None
    layer2.check_structured(value)
    return value


def _run(called: _Method, arguments: list[object], peer: Peer) -> object:
    """Call a method. Returns its answer, or an awaitable or iterator that produces it."""
    keywords = {"peer": peer} if called.wants_peer else {}
    if called.mark.thread:
        return _later(called, asyncio.to_thread(called.function, *arguments, **keywords))
    try:
        result = called.function(*arguments, **keywords)
    except Exception as error:
        _raise_code(error)
        raise
    if result.__class__ in _ACCEPTS:
        pass
    elif inspect.isasyncgen(result):
        return _steps(called, result)
    elif inspect.isawaitable(result):
        return _later(called, result)
    return _answer_aside(called, result) if _is_large(result) else _answer(called, result)


async def _run_aside(called: _Method, message: Message, peer: Peer) -> object:
    """Call a method with a large body: decoding and encoding run on a thread."""
    result = _run(called, await asyncio.to_thread(_arguments, called, message), peer)
    if inspect.isasyncgen(result):
        async for step in result:
            if isinstance(step, Result):
                return step.value
    return await result if inspect.isawaitable(result) else result


async def _answer_aside(called: _Method, result: object) -> Message:
    return await asyncio.to_thread(_answer, called, result)


def _is_large(value: object, depth: int = 0) -> bool:
    """Whether encoding a value takes long."""
    if isinstance(value, str):
        return len(value) >= LARGE
    if not isinstance(value, list | tuple) or depth > values.MAX_DEPTH:
        return False
    return len(value) >= _MANY or any(_is_large(each, depth + 1) for each in value)


def _arguments(called: _Method, message: Message) -> list[object]:
    given = messages.parameters(message)
    annotations = called.parameters[: len(given)]
    if called.more is not None:
        annotations += (called.more,) * (len(given) - len(annotations))
    if not called.required <= len(given) == len(annotations):
        raise failed(ErrorCode.INVALID_PARAMETERS)
    try:
        return [accept(value, annotation) for value, annotation in zip(given, annotations, strict=True)]
    except ValueError:
        raise failed(ErrorCode.INVALID_PARAMETERS) from None


async def _later(called: _Method, work: Awaitable[object]) -> object:
    with _Codes():
        result = await work
    return await _answer_aside(called, result) if _is_large(result) else _answer(called, result)


async def _steps(called: _Method, work: AsyncIterator[object]) -> AsyncIterator[object]:
    """Send the steps of an async generator as Heartbeats. Its `Result` is the answer."""
    with _Codes():
        async for step in work:
            if isinstance(step, Result):
                yield Result(_answer(called, step.value))
                return
            yield None
    yield Result(_answer(called, None))


def _answer(called: _Method, result: object) -> Message:
    """The response. A method without response value sends none."""
    if called.is_void:
        return Message(Kind.RESPONSE, attributes={"response": messages.NO_RESPONSE})
    if result is None:
        return Message(Kind.RESPONSE)
    try:
        value = give(result, called.returns)
    except BodyError as error:
        raise failed(ErrorCode.UNSUPPORTED_DATATYPE) from error
    return _response(value)


def _response(value: Value) -> Message:
    attributes = {"types": values.signature((value,))}
    return message_of(
        (_RESPONSE, None, messages.typed_value(value), None, None, None, messages.JSON, attributes,
         "", None, None, None, _NOBODY)
    )  # fmt: skip


async def call(
    peer: Peer,
    component: str,
    method: str,
    *arguments: object,
    returns: object = object,
    timeout: float | None = 30.0,  # noqa: ASYNC109
) -> object:
    """Call a method of a component at the other end; see `Peer.call`."""
    if _is_large(arguments):
        request = await asyncio.to_thread(_request, component, method, arguments, returns)
    else:
        request = _request(component, method, arguments, returns)
    answer = await peer.ask(request, timeout=timeout)
    if returns is None or answer.kind is not _RESPONSE or not answer.body:
        return None
    if len(answer.body) >= LARGE:
        return await asyncio.to_thread(_result, answer, returns, f"{component}.{method}")
    return _result(answer, returns, f"{component}.{method}")


def _request(component: str, method: str, arguments: tuple[object, ...], returns: object) -> Message:
    given = tuple([values.from_python(each) for each in arguments])
    for each in given:
        if each.type != "string":
            layer2.check_structured(each)
    attributes = {"component": component, "types": values.signature(given)}
    if returns is None:
        attributes["response"] = messages.NO_RESPONSE
    body = messages.typed_parameters(given)
    return message_of(
        (_REQUEST, f"{component}.{method}", body, None, None, None, messages.JSON, attributes,
         "", None, None, None, _NOBODY)
    )  # fmt: skip


def _result(answer: Message, returns: object, name: str) -> object:
    value = messages.response_value(answer)
    if value is None:
        return None
    try:
        return accept(value, returns)
    except ValueError as error:
        code = str(int(ErrorCode.INVALID_RESPONSE))
        raise RequestFailed(code, f"{name} returned {error}".encode()) from None
