"""Wireloom: five lightweight messaging protocols, one API. `connect` and `serve` are where to start."""

from wireloom.model import (
    Authenticity,
    BodyError,
    ConfigError,
    Direction,
    HandshakeFailed,
    JournalError,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    RequestFailed,
    RequestTimeout,
    WireloomError,
)
from wireloom.peers import Backoff, Peer, Result, Server, Service, connect, serve
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
    "Message",
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
    "WireloomError",
    "connect",
    "run",
    "serve",
]
