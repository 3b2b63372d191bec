"""One way to show a person what a peer wrote: nothing in it can move a cursor, turn a line around or hide itself.

A terminal obeys control characters (ESC, U+009B and others), and a page or a terminal shows text in another order after
a bidirectional override (U+202E and its kin). Who may write a topic or a body could so forge what others read. So
whatever a peer wrote goes through `visible` before it is printed, logged or put on a page.
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterator

_PIECE = 1024
"""Characters looked at together: most pieces of most texts have nothing to escape."""


def visible(text: str, keep: str = "") -> str:
    r"""Text with escapes, as JSON writes them, for all characters that are not shown as themselves.

    These are controls (C0, C1), line and paragraph separators, what changes the direction of text, what has no width,
    halves of surrogate pairs, and what is no character. Letters, marks, signs and spaces stay. `keep` names exceptions,
    such as line ends in a body.

    >>> print(visible("Grüße, 東京\x1b[31m \x9b \u202e \n"))
    Grüße, 東京\u001b[31m \u009b \u202e \n
    >>> visible("two\nlines\r", keep="\n") == "two\nlines\\r"
    True

    In JSON only texts hold such characters, so what it stands for is the same after this.

    >>> value = {"topic": "\x9b\u2066\U000e0041\x7f"}
    >>> json.loads(visible(json.dumps(value, ensure_ascii=False))) == value
    True
    """
    return text if text.isprintable() else "".join(_pieces(text, keep))


def _pieces(text: str, keep: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if piece.isprintable():
            yield piece
        else:
            yield from (each if each in keep or _is_shown(each) else _escape(each) for each in piece)


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    found = json.dumps(character)[1:-1]
    return found if found != character else f"\\u{ord(character):04x}"  # DEL, which JSON lets pass


def visible_html(text: str) -> str:
    """The same for a page: what HTML would take for markup is escaped, too.

    >>> visible_html("<b>\\u202e")
    '&lt;b&gt;\\\\u202e'
    """
    return html.escape(visible(text))
