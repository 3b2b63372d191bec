"""Wireloom: five lightweight messaging protocols, one API.

```python
async with wireloom.connect("yamp://127.0.0.1:5043") as peer:
    await peer.publish("sensors/kitchen", {"c": 21.5})
```
"""

from wireloom.model import (
    Authenticity,
    BodyError,
    ConfigError,
    Direction,
    HandshakeFailed,
    InvalidState,
    JournalError,
    Kind,
    LimitExceeded,
    MalformedBody,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    RequestFailed,
    RequestTimeout,
    ValidationError,
    WireloomError,
)
from wireloom.peers import Backoff, Limits, Peer, Result, Server, Service, connect, serve
from wireloom.transports import TLS
from wireloom.transports.loop import run

__all__ = [
    "Authenticity",
    "Backoff",
    "BodyError",
    "ConfigError",
    "Direction",
    "HandshakeFailed",
    "JournalError",
    "Kind",
    "LimitExceeded",
    "Limits",
    "MalformedBody",
    "Message",
    "InvalidState",
    "NotSupported",
    "Peer",
    "PeerClosed",
    "ProtocolViolation",
    "RequestFailed",
    "RequestTimeout",
    "Result",
    "Server",
    "Service",
    "TLS",
    "ValidationError",
    "WireloomError",
    "connect",
    "run",
    "serve",
]
