"""`connect` and `serve`: a session on a transport, with the API people use."""

from wireloom.peers.backoff import Backoff
from wireloom.peers.client import Client, connect
from wireloom.peers.driver import Driver
from wireloom.peers.endpoint import Endpoint, endpoint
from wireloom.peers.handlers import Handler, Result, Service
from wireloom.peers.peer import Peer
from wireloom.peers.server import Limits, Server, serve
from wireloom.peers.streams import MessageStream, Progress, Subscription

__all__ = [
    "Backoff",
    "Client",
    "Driver",
    "Endpoint",
    "Handler",
    "Limits",
    "MessageStream",
    "Peer",
    "Progress",
    "Result",
    "Server",
    "Service",
    "Subscription",
    "connect",
    "endpoint",
    "serve",
]
