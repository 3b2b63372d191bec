"""emp as a `Protocol`: its names, and the way to its frames, sessions and columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from wireloom.model import Direction, Message
from wireloom.protocols.contract import Decoder, Protocol, Role, Scheme, Session, Sessions, Settings
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.frames import SizeMode
from wireloom.protocols.emp.messages import EmpDecoder, encode
from wireloom.protocols.emp.pairing import CONVERSATION
from wireloom.protocols.emp.settings import EmpSettings, for_numbers, settled
from wireloom.protocols.pairing import Conversation

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder
    from wireloom.protocols.emp.session import EmpSession

_HELLO_SIZES = (12, 8)
"""What the size field of a `hello` without blocks says, in either size mode."""
_LONGEST_HELLO = 64 * 1024
_LENIENT_DECOMPRESSED = 256 * 1024 * 1024
_MOST_REMEMBERED = 1024
_MODES: dict[str, SizeMode] = {}
"""By URL: the size mode that a server turned out to have."""


class EmpSessions(Sessions):
    """Sessions of one listener or client. The size mode of a server is remembered for its URL."""

    def new(self, role: Role, *, unique: int = 0, url: str = "") -> EmpSession:
        """A session; that of a client begins in the size mode that is known of the server."""
        from wireloom.protocols.emp.session import EmpSession

        return EmpSession(role, cast(EmpSettings, self.settings), _MODES.get(url, SizeMode.INCLUSIVE))

    def learn(self, session: Session, url: str) -> bool:
        """The server's `hello` may have shown another size mode than that in which the client spoke."""
        mode = cast("EmpSession", session).other_mode
        if mode is None:
            return False
        _MODES.pop(url, None)
        if len(_MODES) >= _MOST_REMEMBERED:
            del _MODES[next(iter(_MODES))]
        _MODES[url] = mode
        return True


class Emp(Protocol):
    """The protocol object of emp.

    >>> from wireloom.model import Kind
    >>> EMP.encode(Message(Kind.OPEN), EMP.settings()).hex()
    '0000000c0000000001000000'
    """

    name: ClassVar[str] = "emp"
    title: ClassVar[str] = "Extensible Messaging Protocol"
    schemes: ClassVar[tuple[Scheme, ...]] = (Scheme("emp", "tcp", 5040), Scheme("emps", "tls", 5040, secure=True))
    settings_type: ClassVar[type[Settings]] = EmpSettings
    carried_attributes: ClassVar[tuple[str, ...]] = ("type", "compression", "extension.*")
    message_size: ClassVar[str | None] = "max_message"
    decompressed_size: ClassVar[str | None] = "max_decompressed"
    clauses: ClassVar[Mapping[str, str]] = frames.CLAUSES
    conversation: ClassVar[Conversation] = CONVERSATION
    case_settings: ClassVar[Sequence[str]] = ("size_mode",)

    def lenient(self) -> Settings:
        """No limit on messages but the size field's own; bombs are still refused."""
        return EmpSettings(
            max_message=frames.MAX_MESSAGE_LIMIT,
            max_decompressed=_LENIENT_DECOMPRESSED,
            size_mode=SizeMode.INCLUSIVE,
        )

    def observing(self) -> Settings:
        """The same; each stream shows its size mode."""
        return dataclasses.replace(cast(EmpSettings, self.lenient()), size_mode=SizeMode.AUTO)

    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction. Number 0 of `topics` is the size mode, in journals of format 1."""
        return EmpDecoder(direction, for_numbers(cast(EmpSettings, settings), topics))

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as one frame."""
        return encode(message, for_numbers(cast(EmpSettings, settings), topics))

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> EmpSession:
        """A new session; its request ids count up from 1 whatever `unique` is, as the specification asks."""
        from wireloom.protocols.emp.session import EmpSession

        return EmpSession(role, cast(EmpSettings, settings))

    def sessions(self, settings: Settings, topics: Mapping[int, str] | None = None) -> EmpSessions:
        """The sessions of one listener or client."""
        return EmpSessions(self, settings, topics)

    def cases(self) -> Sequence[Case]:
        """What any implementation must do."""
        from wireloom.protocols.emp.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether the stream begins with a `hello`, as both directions of every emp connection do.

        >>> EMP.recognise(bytes.fromhex("0000000c0000000001000000"), Direction.C2S)
        True
        >>> EMP.recognise(b"GET / HTTP/1.1", Direction.C2S)
        False
        """
        if len(head) < 6 or head[4] != frames.Type.HELLO:
            return False
        size = int.from_bytes(head[:4])
        if head[5] & 0x80:
            return 16 <= size <= _LONGEST_HELLO
        return size in _HELLO_SIZES and (len(head) < 9 or head[8] != 0)

    def holds(self, data: bytes, direction: Direction, settings: Settings, *, final: bool = False) -> bool | None:
        """The same in either size mode, where the settings leave it open."""
        own = cast(EmpSettings, settings)
        if own.size_mode is not SizeMode.AUTO:
            return super().holds(data, direction, settings, final=final)
        modes = (SizeMode.INCLUSIVE, SizeMode.EXCLUSIVE)
        found = [
            super(Emp, self).holds(data, direction, settled(own, mode, own.profile), final=final) for mode in modes
        ]
        return True if True in found else None if None in found else False

    def columns(self) -> ColumnDecoder:
        """The numba kernel."""
        from wireloom.protocols.emp.columns import EmpColumns

        return EmpColumns()


EMP = Emp()
