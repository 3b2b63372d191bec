"""A mesh node for programs: sockets, queues and timers around `protocols/mesh/node.py`."""
