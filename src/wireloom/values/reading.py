"""Converts plain values to typed ones: a decoded body becomes a dataclass, a TypedDict, an enum, and so on.

A type is compiled once to a tree of functions. Each takes a plain value and returns the typed one, or raises
ValidationError. The error starts at the wrong value, and each enclosing function adds its step to the path.

**Unions.** The members are tried in order, and the first that fits is taken. Maps are first distinguished by their
keys: if each member has a Literal field (a tag), the tag decides; otherwise the required keys do. So usually only one
member is tried.

**Hostile values.** Nesting is limited to `MAX_DEPTH`. Nested unions could try 2**depth combinations. So the reader
counts the maps and arrays that it visits. It stops when there are `VISITS` times as many as the value contains.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from wireloom.errors import ConfigError, ValidationError
from wireloom.values import foreign
from wireloom.values.scalars import KEYS, SCALARS, expected, read_anything, show
from wireloom.values.writing import MAX_DEPTH, step

T = TypeVar("T")

FREE_VISITS = 10_000
"""Visits that are free before the maps and arrays of the value are counted."""
VISITS = 16
"""How often each map and array may be read, on average, before reading ends with an error."""

_MISSING = object()
_LISTS = (
    list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection,
    collections.abc.Iterable,
)  # fmt: skip
_SETS = {set: set, frozenset: frozenset, collections.abc.Set: frozenset, collections.abc.MutableSet: set}
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ARRAY = (list, tuple)


class Walk:
    """The state while one value is read: the current depth, and the work done."""

    __slots__ = ("counted", "depth", "root", "visits")

    def __init__(self, root: object) -> None:
        self.root = root
        self.depth = 0
        self.visits = FREE_VISITS
        """How many more maps and arrays may be visited. Below zero, reading ends."""
        self.counted = False

    def enter(self) -> None:
        """Enter a map or an array."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValidationError(f"nested deeper than {MAX_DEPTH} levels")
        self.visits -= 1
        if self.visits < 0 and not self.counted:
            self.counted = True
            self.visits = VISITS * _containers(self.root) - FREE_VISITS
        if self.visits < 0:
            raise ValidationError("too many members of unions would have to be tried")


Read = Callable[[Any, Walk], Any]


class Reader(Generic[T]):
    """Converts plain values to one type. Made by `reader_of`."""

    def __init__(self, kind: object, read: Read, bodies: Mapping[str, Callable[[bytes], object]]) -> None:
        self.kind = kind
        self._read = read
        self.bodies = bodies
        """Readers of whole bodies, by content type, if the type's package has them."""

    def convert(self, value: object) -> T:
        """Convert a plain value to this type."""
        try:
            return typing.cast(T, self._read(value, Walk(value)))
        except RecursionError:
            raise ValidationError("nested too deeply") from None


def convert(value: object, kind: type[T]) -> T:
    """Convert a plain value to a type. ValidationError names the place where it does not fit.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Reading:
    ...     celsius: float
    ...     tags: list[str] = ()
    >>> convert({"celsius": 21.5, "tags": ["roof"]}, Reading)
    Reading(celsius=21.5, tags=['roof'])
    >>> convert({"celsius": 21.5, "tags": ["roof", 7]}, Reading)
    Traceback (most recent call last):
    wireloom.errors.ValidationError: $.tags[1]: expected str, got int 7
    """
    reader: Reader[T] = reader_of(kind)
    return reader.convert(value)


def reader_of(kind: object) -> Reader[Any]:
    """The reader of a type. Raises ConfigError if the type cannot be read from a body."""
    try:
        return _cached_reader(kind)
    except TypeError:  # such as Annotated with an unhashable argument
        return _new_reader(kind)


def fields_reader(fields: Iterable[tuple[str, object, bool]]) -> Reader[dict[str, Any]]:
    """The reader of a map with these fields: name, type, whether it is required.

    >>> fields_reader([("a", int, True), ("b", int, False)]).convert({"a": 1})
    {'a': 1}
    """
    compiler = _Compiler()
    compiled = [TypedField(name, compiler.compile(kind), required) for name, kind, required in fields]
    return Reader(dict, _fields(compiled, "the arguments"), {})


def _new_reader(kind: object) -> Reader[Any]:
    other = foreign.reader(kind) if isinstance(kind, type) else None
    if other is not None:
        return Reader(kind, lambda value, walk: other.convert(value), other.bodies)
    return Reader(kind, _Compiler().compile(kind), {})


_cached_reader = lru_cache(maxsize=1024)(_new_reader)


class TypedField(NamedTuple):
    """One field of a map."""

    name: str
    read: Read
    required: bool


class _Compiler:
    """Compiles types to functions. Recursive types are found in `_known`."""

    def __init__(self) -> None:
        self._known: dict[object, Read] = {}

    def compile(self, kind: object) -> Read:
        """The function that reads a type."""
        if isinstance(kind, str | typing.ForwardRef):
            raise ConfigError(f"the type {kind!r} is not known here; name the class itself, not its name in quotes")
        scalar = SCALARS.get(kind)
        if scalar is not None:
            return _scalar(scalar)
        if kind is Any or isinstance(kind, TypeVar):
            return _scalar(read_anything)
        if isinstance(kind, typing.NewType):
            return self.compile(kind.__supertype__)
        if hasattr(kind, "__value__"):  # `type X = ...` of newer Pythons
            return self._once(kind, lambda: self.compile(kind.__value__))
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired, typing.Final):
            return self.compile(arguments[0])
        if origin is typing.Union or origin is types.UnionType:
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(arguments)
        container = kind if origin is None else origin
        if container in _LISTS:
            return _list(self.compile(arguments[0]) if arguments else _scalar(read_anything))
        if container in _SETS:
            return _set(self.compile(arguments[0]) if arguments else _scalar(read_anything), _SETS[container])
        if container in _MAPS:
            return self._dict(arguments)
        if container is tuple:
            return self._tuple(arguments)
        if isinstance(container, type):
            return self._once(kind, lambda: self._class(container, arguments))
        raise ConfigError(f"{kind!r} cannot be read from a body")

    def _once(self, kind: object, make: Callable[[], Read]) -> Read:
        """Compile a type that may contain itself."""
        if kind not in self._known:
            self._known[kind] = lambda value, walk: self._known[kind](value, walk)  # noqa: PLW0108 - not known yet
            self._known[kind] = make()
        return self._known[kind]

    def _class(self, kind: type, arguments: tuple[object, ...]) -> Read:
        other = foreign.reader(kind)
        if other is not None:
            return _scalar(other.convert)
        if issubclass(kind, Enum):
            return _enum(kind)
        if dataclasses.is_dataclass(kind):
            return _object(kind, self._dataclass_fields(kind, arguments))
        if typing.is_typeddict(kind):
            return _typed_dict(kind.__name__, self._typed_dict_fields(kind))
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        raise ConfigError(f"{kind.__qualname__} cannot be read from a body: make it a dataclass, or read plain values")

    def _dataclass_fields(self, kind: type, arguments: tuple[object, ...]) -> list[TypedField]:
        hints = type_hints(kind)
        named = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
        missing = dataclasses.MISSING
        return [
            TypedField(
                each.name,
                self.compile(_with_arguments(hints[each.name], named)),
                each.default is missing and each.default_factory is missing,
            )
            for each in dataclasses.fields(kind)
            if each.init
        ]

    def _typed_dict_fields(self, kind: type) -> list[TypedField]:
        required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
        found = []
        for name, hint in type_hints(kind).items():
            origin = typing.get_origin(hint)
            needed = (
                name in required if origin not in (typing.Required, typing.NotRequired) else origin is typing.Required
            )
            found.append(TypedField(name, self.compile(hint), needed))
        return found

    def _named_tuple(self, kind: Any) -> Read:
        hints = type_hints(kind)
        reads = [self.compile(hints.get(name, object)) for name in kind._fields]
        least, most = len(reads) - len(kind._field_defaults), len(reads)

        def read(value: Any, walk: Walk) -> Any:
            if not isinstance(value, _ARRAY):
                raise expected(f"{kind.__name__} as an array", value)
            if not least <= len(value) <= most:
                raise ValidationError(f"expected the {most} values of {kind.__name__}, got {len(value)}")
            return kind(*_items(zip(reads, value, strict=False), walk))

        return read

    def _tuple(self, arguments: tuple[object, ...]) -> Read:
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            read_all = _list(self.compile(arguments[0]) if arguments else _scalar(read_anything))
            return lambda value, walk: tuple(read_all(value, walk))
        reads = [] if arguments == ((),) else [self.compile(each) for each in arguments]

        def read(value: Any, walk: Walk) -> Any:
            if not isinstance(value, _ARRAY):
                raise expected(f"an array of {len(reads)}", value)
            if len(value) != len(reads):
                raise ValidationError(f"expected {len(reads)} values, got {len(value)}")
            return tuple(_items(zip(reads, value, strict=True), walk))

        return read

    def _dict(self, arguments: tuple[object, ...]) -> Read:
        read_key = self._key(arguments[0]) if arguments else KEYS[object]
        read_value = self.compile(arguments[1]) if arguments else _scalar(read_anything)

        def read(value: Any, walk: Walk) -> Any:
            if not isinstance(value, dict):
                raise expected("a map", value)
            walk.enter()
            found: dict[object, object] = {}
            key: object = None
            try:
                for key, each in value.items():
                    found[read_key(key)] = read_value(each, walk)
            except ValidationError as error:
                raise error.within(step(key)) from None
            walk.depth -= 1
            return found

        return read

    def _key(self, kind: object) -> Callable[[object], object]:
        if isinstance(kind, typing.NewType):
            return self._key(kind.__supertype__)
        if kind is Any or isinstance(kind, TypeVar):
            return read_anything
        if kind in KEYS:
            return KEYS[kind]
        if typing.get_origin(kind) is typing.Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
            read = self.compile(kind)
            return lambda value: read(value, Walk(value))
        raise ConfigError(
            f"the keys of a map cannot be {kind!r}; they can be text, int, UUID, datetime, enums, Literal"
        )

    def _union(self, members: tuple[object, ...]) -> Read:
        reads = [(each, self.compile(each)) for each in members if each is not types.NoneType]
        optional = len(reads) < len(members)
        if len(reads) == 1:
            only = reads[0][1]
            return lambda value, walk: None if value is None else only(value, walk)
        # An int stays an int if the union contains int, in any position.
        scalars = {each for each, _ in reads if each in (int, float, bool)}
        choices = _Choices(reads)
        names = " | ".join([getattr(each, "__name__", str(each)) for each, _ in reads] + ["None"] * optional)

        def read(value: Any, walk: Walk) -> Any:
            if value is None and optional:
                return None
            if value.__class__ in scalars:
                return value
            deepest: ValidationError | None = None
            depth = walk.depth
            for candidate in choices.of(value):
                try:
                    return candidate(value, walk)
                except ValidationError as error:
                    walk.depth = depth
                    if walk.visits < 0:
                        raise
                    if deepest is None or len(error.path) > len(deepest.path):
                        deepest = error
            if deepest is None or deepest.path == "$":
                raise expected(names, value)
            raise deepest

        return read


class _Shape(NamedTuple):
    """The keys that a map must have to be tried as a member of a union."""

    required: frozenset[str]
    tags: Mapping[str, tuple[object, ...]]

    def fits(self, value: Mapping[object, object]) -> bool:
        return all(name in value for name in self.required) and all(
            name not in value or value[name] in allowed for name, allowed in self.tags.items()
        )

    def has_tag_of(self, value: Mapping[object, object]) -> bool:
        return bool(self.tags) and all(value.get(name, _MISSING) in allowed for name, allowed in self.tags.items())


def _shape(kind: object) -> _Shape | None:
    origin = typing.get_origin(kind) or kind
    if not isinstance(origin, type) or foreign.is_foreign(origin):
        return None
    if dataclasses.is_dataclass(origin):
        missing = dataclasses.MISSING
        fields = {
            each.name: each.default is missing and each.default_factory is missing
            for each in dataclasses.fields(origin)
            if each.init
        }
    elif typing.is_typeddict(origin):
        needed: frozenset[str] = origin.__required_keys__  # type: ignore[attr-defined]
        fields = {name: name in needed for name in origin.__annotations__}
    else:
        return None
    hints = type_hints(origin)
    tags = {}
    for name in fields:
        hint = hints[name]
        if typing.get_origin(hint) is typing.Literal:
            tags[name] = typing.get_args(hint)
    return _Shape(frozenset(name for name, required in fields.items() if required), tags)


class _Choices:
    """The members of a union, in order."""

    def __init__(self, reads: Sequence[tuple[object, Read]]) -> None:
        self._all = [read for _, read in reads]
        self._shaped = [(read, _shape(kind)) for kind, read in reads]

    def of(self, value: object) -> Iterable[Read]:
        """The members to try. Among maps: those with the value's tag, or else those with its keys."""
        if not isinstance(value, dict):
            return self._all
        tagged = [read for read, shape in self._shaped if shape is not None and shape.has_tag_of(value)]
        if tagged:
            return tagged
        return [read for read, shape in self._shaped if shape is None or shape.fits(value)] or self._all


def _scalar(read: Callable[[Any], object]) -> Read:
    return lambda value, walk: read(value)


def _list(read_item: Read) -> Read:
    def read(value: Any, walk: Walk) -> list[object]:
        if not isinstance(value, _ARRAY):
            raise expected("an array", value)
        walk.enter()
        found: list[object] = []
        try:
            for each in value:
                found.append(read_item(each, walk))  # noqa: PERF401 - its length is where an error is
        except ValidationError as error:
            raise error.within(f"[{len(found)}]") from None
        walk.depth -= 1
        return found

    return read


def _set(read_item: Read, make: Callable[[Iterable[object]], object]) -> Read:
    read_all = _list(read_item)

    def read(value: Any, walk: Walk) -> object:
        items = read_all(list(value) if isinstance(value, set | frozenset) else value, walk)
        try:
            return make(items)
        except TypeError:
            raise ValidationError("the values of a set must have a hash; use frozen dataclasses") from None

    return read


def _items(reads: Iterable[tuple[Read, object]], walk: Walk) -> list[object]:
    """The items of an array in which each position has its own type."""
    walk.enter()
    found: list[object] = []
    try:
        for read, each in reads:
            found.append(read(each, walk))
    except ValidationError as error:
        raise error.within(f"[{len(found)}]") from None
    walk.depth -= 1
    return found


def _fields(fields: Sequence[TypedField], name_of_type: str) -> Callable[[Any, Walk], dict[str, object]]:
    def read(value: Any, walk: Walk) -> dict[str, object]:
        if not isinstance(value, dict):
            raise expected(f"{name_of_type} as a map", value)
        walk.enter()
        found: dict[str, object] = {}
        name = ""
        get = value.get
        try:
            for name, read_field, required in fields:
                each = get(name, _MISSING)
                if each is not _MISSING:
                    found[name] = read_field(each, walk)
                elif required:
                    raise ValidationError("is missing")
        except ValidationError as error:
            raise error.within(step(name)) from None
        walk.depth -= 1
        return found

    return read


def _object(kind: type, fields: Sequence[TypedField]) -> Read:
    """A dataclass from a map. Unknown keys are ignored."""
    read_fields = _fields(fields, kind.__name__)

    def read(value: Any, walk: Walk) -> Any:
        found = read_fields(value, walk)
        try:
            return kind(**found)
        except ValidationError:
            raise
        except ValueError as error:  # raised by __post_init__
            raise ValidationError(str(error)) from error

    return read


def _typed_dict(name: str, fields: Sequence[TypedField]) -> Read:
    return _fields(fields, name)


def _enum(kind: type[Enum]) -> Read:
    by_value = {each.value: each for each in kind if isinstance(each.value, collections.abc.Hashable)}
    allowed = ", ".join(repr(each.value) for each in list(kind)[:20])

    def read(value: Any, walk: Walk) -> Any:
        try:
            found = by_value.get(value)
        except TypeError:
            found = None
        if found is None or isinstance(value, bool) is not isinstance(found.value, bool):
            raise ValidationError(f"expected one of {allowed}, got {show(value)}")
        return found

    return read


def _literal(allowed: tuple[object, ...]) -> Read:
    values = {each.value if isinstance(each, Enum) else each: each for each in allowed}
    kinds = {(type(each), each) for each in values}
    words = ", ".join(map(repr, values))

    def read(value: Any, walk: Walk) -> Any:
        try:
            if (value.__class__, value) in kinds:
                return values[value]
        except TypeError:
            pass
        raise ValidationError(f"expected {words}, got {show(value)}")

    return read


def _with_arguments(hint: Any, named: Mapping[object, object]) -> Any:
    """The annotation of a field of a generic class, with type variables replaced by the arguments."""
    if not named:
        return hint
    if isinstance(hint, TypeVar):
        return named.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(named.get(each, each) for each in parameters)] if parameters else hint


def type_hints(subject: Any) -> dict[str, Any]:
    """The annotations of a class or function as types. ConfigError names one that cannot be resolved."""
    try:
        return typing.get_type_hints(subject, include_extras=True)
    except NameError as error:
        name = getattr(subject, "__qualname__", subject)
        raise ConfigError(f"the annotations of {name} cannot be resolved: {error}; define it in a module") from None


def _containers(value: object) -> int:
    """How many maps and arrays a value contains."""
    return sum(1 for _ in _inside(value))


def _inside(value: object) -> Iterator[object]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list | tuple | set | frozenset):
            yield each
            waiting.extend(each.values() if isinstance(each, dict) else each)
