"""Wireloom without asyncio, for scripts and notebooks: the same names, the same errors, iteration by `for`.

```python
with wireloom.sync.connect("yamp://127.0.0.1:5043") as peer:
    peer.publish("sensors/kitchen", {"c": 21.5})
    for event in peer.subscribe("alerts/#"):
        print(event.topic, event.value())
```

An event loop in a thread does the work. Several threads may use one peer. Everything still open at the end of the
program is closed properly.
"""

from wireloom.sync.peer import Client, Peer
from wireloom.sync.server import Server, connect, serve
from wireloom.sync.streams import Many, MessageStream, Progress, PublishMany, Subscription

__all__ = [
    "Client",
    "Many",
    "MessageStream",
    "Peer",
    "Progress",
    "PublishMany",
    "Server",
    "Subscription",
    "connect",
    "serve",
]
