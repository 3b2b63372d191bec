"""The only rooms that open sockets. See `base` for the seam, `registry` for the way to a transport."""

from wireloom.transports.address import URL, Address, parse_url
from wireloom.transports.base import Credentials, Listener, Options, Owner, OwnerFactory, Pipe, TLSInfo, Transport
from wireloom.transports.registry import transport
from wireloom.transports.tls import TLS

__all__ = [
    "Address",
    "Credentials",
    "Listener",
    "Options",
    "Owner",
    "OwnerFactory",
    "Pipe",
    "TLS",
    "TLSInfo",
    "Transport",
    "URL",
    "parse_url",
    "transport",
]
