"""A mesh node for programs: the sockets, queues and the clock around `protocols/mesh/node.py`."""
