"""What `enable_columns` compiled is all that is needed: no read waits for a compiler."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.protocols.talking import STREAMS

PROGRAM = """
import importlib, sys
from numba.core.dispatcher import Dispatcher
from tests.protocols.talking import talking
from wireloom.model import Kind, Message
from wireloom.protocols.contract import Calls, Publishes, Role

name = sys.argv[1]
kind = "application/json" if name == "yamp" else None


def sent(*messages):
    client = talking(name, Role.CLIENT)
    for topic, is_request in messages:
        kinds = Kind.REQUEST if is_request else Kind.EVENT
        client.send(Message(kinds, topic, b'"%b"' % (b"x" * 60), content_type=kind), 0.0)
    return client.outgoing()


servers = [talking(name) for _ in range(3)]
for server in servers:
    assert server.enable_columns()
modules = [f"wireloom.protocols.{each}" for each in ("publish_columns", "call_columns", f"{name}.publish_columns")]
kernels = {
    (module, key): value
    for module in modules
    for key, value in vars(importlib.import_module(module)).items()
    if isinstance(value, Dispatcher)
}
before = {key: len(value.signatures) for key, value in kernels.items()}
mixed = [("a", False), ("$hub/publish/b", True)] * 20
found = 0
for messages in (mixed, [("a", False)] * 20, [("b", True)] * 20):
    for batch in servers[0].receive(sent(*messages), 1.0):
        if isinstance(batch, Publishes):
            found += 1
            events = batch.events()
            for reader in ("hsp", "emp", "yamp"):
                for chosen in ([*range(len(events.topics))], [0]):
                    events.of(chosen).frames(talking(reader), 1.0)
            batch.acknowledgements()
        elif isinstance(batch, Calls):
            found += 1
            provider = talking(name)
            assert provider.ask_all(batch.topics[0], batch.content_types[0], batch.bodies(range(batch.count)), 1.0)
reads = [sent(*mixed) for _ in servers[1:]]
ends = [len(reads[0]), len(reads[0]) + len(reads[1])]
taken = servers[1].columns.take(servers[1:], b"".join(reads), [0, ends[0]], ends)
taken.batch.acknowledgements()
assert found >= 2
for key, value in kernels.items():
    if len(value.signatures) > before[key]:
        print(*key, value.signatures[before[key]:])
"""


@pytest.mark.parametrize("name", tuple(STREAMS))
def test_no_kernel_is_compiled_after_the_columns_are_enabled(name: str) -> None:
    importlib.import_module("numba")
    done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


DATAGRAMS = """
from numba.core.dispatcher import Dispatcher
from wireloom.model import Kind, Message
from wireloom.protocols.contract import Role
from wireloom.protocols.mesh import scan
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.security import Identity
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.registry import protocol

mesh = protocol("mesh")
server = mesh.sessions(mesh.lenient()).new(Role.SERVER)
server.connected(0.0)
assert server.enable_columns()
kernels = {key: value for key, value in vars(scan).items() if isinstance(value, Dispatcher)}
before = {key: len(value.signatures) for key, value in kernels.items()}
author = Author(MeshSettings(), Identity(b"n" * 16))
packets = [author.write(Message(Kind.EVENT, "a", b"x"), 0.0)[0] for _ in range(40)]
ends = [sum(map(len, packets[: at + 1])) for at in range(len(packets))]
assert list(server.receive_datagrams(b"".join(packets), ends, 0.0))
for key, value in kernels.items():
    if len(value.signatures) > before[key]:
        print(key, value.signatures[before[key]:])
"""


def test_no_kernel_is_compiled_at_the_first_datagrams() -> None:
    importlib.import_module("numba")
    done = subprocess.run([sys.executable, "-c", DATAGRAMS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
