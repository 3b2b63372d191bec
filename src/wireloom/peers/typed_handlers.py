"""Makes handlers from functions: maps their parameters to message, peer and typed body.

A parameter annotated with `Message` or `Peer` gets that object. Without annotations, the first parameter gets the
message, and the second the peer. All others get the body: a single one gets the whole body, several get the fields of a
map by their names. A body that does not fit is refused with 400 and the place of the error, before the function runs.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wireloom.chunked_json import LARGE
from wireloom.model import ConfigError, MalformedBody, Message, RequestFailed, ValidationError
from wireloom.values import Reader, reader_of
from wireloom.values.reading import fields_reader

if TYPE_CHECKING:
    from wireloom.peers.handlers import Handler
    from wireloom.peers.peer import Peer

BAD_REQUEST = "400"
_ANYTHING = (inspect.Parameter.empty, Any, object)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """What a handler takes and returns, for descriptions of a service."""

    body: tuple[tuple[str, object, bool], ...]
    """Name, type and "is required" of the parameters that get the body. Empty if there are none."""
    returns: object
    """The annotation of the result; `inspect.Signature.empty` without one."""

    @property
    def is_typed(self) -> bool:
        """Whether a parameter gets the body as a typed value."""
        return bool(self.body)


def handler_of(function: Callable[..., object], local: Mapping[str, object]) -> tuple[Handler, HandlerSignature]:
    """A handler from a function, with its signature. `local` holds names that its annotations may use."""
    parameters = list(inspect.signature(function).parameters.values())
    hints = {each.name: _annotation(function, each.annotation, local) for each in parameters}
    returned = _annotation(function, inspect.signature(function).return_annotation, local)
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return typing.cast("Handler", function), HandlerSignature((), returned)
    roles = _roles(parameters, hints)
    body = [each for each in parameters if roles[each.name] == "body"]
    if not body:
        return _untyped(function, parameters), HandlerSignature((), returned)
    described = tuple((each.name, hints[each.name], each.default is each.empty) for each in body)
    return _Typed(function, parameters, roles, described).handler(), HandlerSignature(described, returned)


def _roles(parameters: list[inspect.Parameter], hints: Mapping[str, object]) -> dict[str, str]:
    """What each parameter gets: the message, the peer, or the body."""
    free = ["message", "peer"]
    roles: dict[str, str] = {}
    for each in parameters:
        hint = hints[each.name]
        if hint in _ANYTHING and (each.name in free or hint is inspect.Parameter.empty):
            role = each.name if each.name in free else free[0] if free else "body"
        else:
            role = _special(hint) or "body"
        if role in free:
            free.remove(role)
        roles[each.name] = role
    return roles


def _special(hint: object) -> str | None:
    name = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    if hint is Message or name == "Message":
        return "message"
    is_peer = isinstance(hint, type) and any(base.__module__ == "wireloom.peers.peer" for base in hint.__mro__)
    return "peer" if is_peer or name in ("Peer", "Client") else None


def _annotation(function: Callable[..., object], annotation: object, local: Mapping[str, object]) -> object:
    """An annotation as a type. `Message` and `Peer` may stay names: they are often imported for type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    known = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, dict(local), include_extras=True)["it"]
    except NameError as error:
        name = annotation.rpartition(".")[2]
        if _special(name):
            return name
        where = getattr(function, "__qualname__", function)
        raise ConfigError(f"{where}: the annotation {annotation!r} is not known: {error}") from None


def _untyped(function: Callable[..., object], parameters: list[inspect.Parameter]) -> Handler:
    """A function that takes the message alone, or the message and the peer."""
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    if len(positional) == 1:
        return lambda message, peer: function(message)
    return typing.cast("Handler", function)


class _Typed:
    """A function whose parameters get the body."""

    def __init__(
        self,
        function: Callable[..., object],
        parameters: list[inspect.Parameter],
        roles: Mapping[str, str],
        body: tuple[tuple[str, object, bool], ...],
    ) -> None:
        self._function = function
        self._names = {role: name for name, role in roles.items()}
        self._positional = all(each.kind in _POSITIONAL for each in parameters)
        self._order = [roles[each.name] for each in parameters]
        self._single = len(body) == 1
        (name, kind, self._required), *_ = body
        self._name = name
        self._default = next(each.default for each in parameters if each.name == name)
        try:
            one = kind if self._required else typing.Optional[kind]  # noqa: UP045 - of a type that is known only here
            self._reader: Reader[Any] = reader_of(one) if self._single else fields_reader(body)
        except ConfigError as error:
            where = getattr(function, "__qualname__", function)
            raise ConfigError(f"{where}: {error}") from None

    def handler(self) -> Handler:
        """The function as a handler."""
        aside = self._steps_aside if inspect.isasyncgenfunction(self._function) else self._aside

        def handle(message: Message, peer: Peer) -> object:
            if len(message.body) >= LARGE:
                return aside(message, peer)
            return self._call(self._read(message, peer), message, peer)

        return handle

    def _read(self, message: Message, peer: Peer) -> Any:
        """The body as typed values. Refused with 400 if it does not fit."""
        try:
            found = peer.decode(message, self._reader)
            return self._default if found is None and self._single and not self._required else found
        except ValidationError as error:
            raise RequestFailed(BAD_REQUEST, str(error).encode()) from None
        except MalformedBody as error:
            raise RequestFailed(BAD_REQUEST, f"$: {error.detail}".encode()) from None

    def _call(self, body: Any, message: Message, peer: Peer) -> object:
        if self._single and self._positional:
            given = {"message": message, "peer": peer, "body": body}
            return self._function(*[given[role] for role in self._order])
        named: dict[str, object] = {self._name: body} if self._single else dict(body)
        for role, value in (("message", message), ("peer", peer)):
            if role in self._names:
                named[self._names[role]] = value
        return self._function(**named)

    async def _aside(self, message: Message, peer: Peer) -> object:
        """Decode a large body on another thread, then call the function."""
        body = await asyncio.get_running_loop().run_in_executor(None, self._read, message, peer)
        result = self._call(body, message, peer)
        return await result if inspect.isawaitable(result) else result

    async def _steps_aside(self, message: Message, peer: Peer) -> AsyncIterator[object]:
        body = await asyncio.get_running_loop().run_in_executor(None, self._read, message, peer)
        async for step in typing.cast("AsyncIterator[object]", self._call(body, message, peer)):
            yield step
