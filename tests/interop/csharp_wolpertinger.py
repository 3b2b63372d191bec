"""A peer that behaves as the recorded C# implementation of wolpertinger does (`tests/vectors/wolpertinger-csharp.json`).

One message a line. It reads message ids as signed 32-bit numbers, and takes no notice of a line whose id is larger.
`EstablishConnection` is answered with its resource, a GUID as string, and that is what it wants for an answer. As a client it
registers a call only after it was sent: an answer that is there before is lost. Trust 2 and above is left out.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

LARGEST_ID = 2**31 - 1
HEAD = 'xmlns="http://nerdcave.eu/wolpertinger"'
RESOURCE = str(uuid.UUID(int=0x5D7B3A526F0E4C0C8F580D4F3B1C9A11))
_DATA = re.compile(rb"message_id:([0-9]+);([A-Za-z0-9+/=]+)\n")
_OBJECT = re.compile(r"<object type=\"(\w+)\">(.*?)</object>", re.S)


def element(name: str, xml: str) -> str:
    """The text of an element, empty if there is none."""
    found = re.search(rf"<{name}>(.*?)</{name}>", xml, re.S)
    return found[1] if found else ""


@dataclass
class Line:
    """One end of a connection."""

    socket: socket.socket
    last_id: int = 0
    ignored: list[int] = field(default_factory=list)
    """Message ids that it cannot read as a signed number."""

    def __post_init__(self) -> None:
        self._file = self.socket.makefile("rb")

    def send(self, xml: str) -> None:
        self.last_id += 1
        self.socket.sendall(b"message_id:%d;%b\n" % (self.last_id, base64.b64encode(xml.encode())))

    def read(self) -> str | None:
        """The next document, confirmed; None at the end."""
        while line := self._file.readline():
            found = _DATA.fullmatch(line)
            if found is None:
                assert line.startswith(b"result:0;message_id:"), line
                continue
            number = int(found[1])
            if number > LARGEST_ID:
                self.ignored.append(number)
                continue
            self.socket.sendall(b"result:0;message_id:%d;\n" % number)
            return base64.b64decode(found[2]).decode()
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.socket.close()


@dataclass
class Server:
    """Listens on loopback; each connection has a thread. It has the component `Test`."""

    door: socket.socket
    lines: list[Line] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"wolpertinger://127.0.0.1:{self.door.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            line = Line(connection)
            self.lines.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: Line) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (xml := line.read()) is not None:
                line.send(self._answer(xml))
        line.close()

    def _answer(self, xml: str) -> str:
        component, method, call = (element(name, xml) for name in ("ComponentName", "MethodName", "CallId"))
        given = _OBJECT.findall(xml)
        match component, method:
            case "Authentication", "EstablishConnection":
                value = f'<object type="string">{RESOURCE}</object>'
            case "Test", "Echo":
                value = "".join(f'<object type="{kind}">{text}</object>' for kind, text in given)
            case "Test", "Add":
                value = f'<object type="int32">{sum(int(text) for _, text in given)}</object>'
            case "Test", "Fail":
                return _error(component, given[0][1], call)
            case "Test", _:
                return _error(component, "303", call)
            case _:
                return _error("", "304", call)
        return (
            f"<RemoteMethodResponse {HEAD}><ComponentName>{component}</ComponentName><CallId>{call}</CallId>"
            f"<ResponseValue>{value}</ResponseValue></RemoteMethodResponse>"
        )


def _error(component: str, code: str, call: str) -> str:
    name = f"<ComponentName>{component}</ComponentName>" if component else "<ComponentName />"
    return f"<RemoteError {HEAD}>{name}<ErrorCode>{code}</ErrorCode><CallId>{call}</CallId></RemoteError>"


@contextlib.contextmanager
def csharp_server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = Server(door)
        threading.Thread(target=server.run, daemon=True).start()
        try:
            yield server
        finally:
            door.shutdown(socket.SHUT_RDWR)
            for line in server.lines:
                line.close()


class Client(Line):
    """A client; a thread reads what comes. `slowness` is how long it takes to register a call that it has sent."""

    def __init__(self, port: int, slowness: float = 0.0) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port)))
        self._slowness = slowness
        self._calls: dict[str, list[str]] = {}
        self._answered = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (xml := self.read()) is not None:
                with self._answered:
                    answers = self._calls.get(element("CallId", xml))
                    if answers is not None:
                        answers.append(xml)
                        self._answered.notify_all()

    def call(self, component: str, method: str, *texts: str, patience: float = 30.0) -> str | None:
        """The document that answers a call; None if it was lost."""
        call = str(uuid.uuid4())
        given = "".join(f'<object type="string">{escape(text)}</object>' for text in texts)
        self.send(
            f"<RemoteMethodCall {HEAD}><ComponentName>{component}</ComponentName><CallId>{call}</CallId>"
            f"<MethodName>{method}</MethodName><Parameters>{given}</Parameters></RemoteMethodCall>"
        )
        if self._slowness:
            time.sleep(self._slowness)
        with self._answered:
            answers = self._calls.setdefault(call, [])
            self._answered.wait_for(lambda: bool(answers), patience)
        return answers[0] if answers else None

    def connect(self) -> bool:
        """Establish a connection as it does; False if it does not take the answer for a GUID."""
        answer = self.call("Authentication", "EstablishConnection") or ""
        kinds = _OBJECT.findall(answer)
        try:
            return [kind for kind, _ in kinds] == ["string"] and bool(uuid.UUID(kinds[0][1]))
        except ValueError:
            return False
