"""The beginning of a frame, kept until the rest of it has come.

A large frame can come in very small reads. What a read costs must depend on what it brought, not on what waits
already: as soon as the length of a frame is known, nothing is looked at or joined until so many bytes are there.
"""

from __future__ import annotations


class Kept(bytearray):
    """Bytes that were received and are not a whole frame yet.

    >>> kept = Kept()
    >>> kept.keep(b"ab", needed=5)
    >>> kept.takes(b"c"), kept.takes(b"de")
    (True, False)
    >>> kept.joined(b"de"), len(kept)
    (b'abcde', 0)
    """

    __slots__ = ("needed",)

    def __init__(self) -> None:
        super().__init__()
        self.needed = 0
        """How many bytes there must be before reading on makes sense; 0 where that is not known."""

    def keep(self, rest: bytes | bytearray, needed: int = 0) -> None:
        """Keep this instead of what was kept."""
        self[:] = rest
        self.needed = needed

    def takes(self, data: bytes) -> bool:
        """Whether the frame is not complete with these bytes, either: then they are kept, too."""
        if len(self) + len(data) >= self.needed:
            return False
        self += data
        return True

    def joined(self, data: bytes) -> bytes:
        """Everything kept and these bytes behind it; nothing is kept any more."""
        whole = b"".join((self, data))
        self.clear()
        self.needed = 0
        return whole
