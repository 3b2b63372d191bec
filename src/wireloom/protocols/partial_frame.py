"""Buffers an incomplete frame until the rest of it arrives.

A large frame can arrive in very small reads. The work for a read must depend on the size of the read, not on the size
of the buffer. So once the length of a frame is known, nothing is parsed or joined until that many bytes have arrived.
"""

from __future__ import annotations


class Kept(bytearray):
    """Received bytes that are not a complete frame yet.

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
        """How many bytes the frame needs; 0 if that is not known."""

    def keep(self, rest: bytes | bytearray, needed: int = 0) -> None:
        """Replace the buffered bytes."""
        self[:] = rest
        self.needed = needed

    def takes(self, data: bytes) -> bool:
        """Whether the frame is still incomplete with these bytes; then buffer them."""
        if len(self) + len(data) >= self.needed:
            return False
        self += data
        return True

    def joined(self, data: bytes) -> bytes:
        """The buffered bytes followed by these; the buffer is empty then."""
        whole = b"".join((self, data))
        self.clear()
        self.needed = 0
        return whole
