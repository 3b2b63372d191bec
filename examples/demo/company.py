"""The people and machines of a small energy company: who talks to the hub in the demo, and who misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import wireloom
from examples.demo.meter import TOPICS
from wireloom.cli.main import main as wireloom_command
from wireloom.mesh import Node
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.identity import load_identity
from wireloom.protocols.mesh.security import sign_packet

DEVICES = 3
billing = wireloom.Service()


@billing.request("Billing.Invoice")
async def invoice(message: wireloom.Message) -> AsyncIterator[object]:
    """An invoice takes a moment; whoever asked for progress sees it grow."""
    for percent in (25, 50, 75):
        await asyncio.sleep(0.01)
        yield {"percent": percent}
    yield wireloom.Result({"euro": 42.5})


@billing.request("Billing.Refund")
async def refund(message: wireloom.Message) -> object:
    """A service that fails, as some do."""
    raise wireloom.RequestFailed("422", b"there is no money left")


@contextlib.asynccontextmanager
async def billing_service(url: str) -> AsyncIterator[None]:
    """The billing department, on yamp."""
    async with wireloom.connect(url, handler=billing) as hub:
        for topic in ("Billing.Invoice", "Billing.Refund"):
            await hub.provide(topic)
        yield


async def customer(url: str, count: int) -> tuple[int, int]:
    """Asks for invoices with progress, over yamp; returns the answers and the steps it saw."""
    steps = 0
    async with wireloom.connect(url) as hub:
        for number in range(count):
            job = hub.request_progress("Billing.Invoice", {"customer": number})
            async for _ in job:
                steps += 1
            await job
    return count, steps


async def operator(url: str, count: int) -> tuple[int, int]:
    """Calls billing by remote method calls in XML, over wolpertinger; returns answers and refusals."""
    answered = refused = 0
    async with wireloom.connect(url) as hub:
        for number in range(count):
            await hub.request("Billing.Invoice", {"Customer": number})
            answered += 1
            try:
                await hub.request("Billing.Refund", {"Customer": number})
            except wireloom.RequestFailed:
                refused += 1
    return answered, refused


async def weather_feed(url: str, count: int) -> None:
    """Forecasts with compressed bodies, acknowledged, over emp."""
    forecast = {"hours": [{"wind": hour % 7, "sun": hour % 5, "note": "as the day before"} for hour in range(48)]}
    async with wireloom.connect(url, settings={"compress_above": 256}) as hub:
        for number in range(count):
            await hub.publish("weather/forecast", {"n": number, **forecast}, ack=True)


def make_keys(folder: Path) -> tuple[Path, list[Path]]:
    """A key for the hub and each device, and a trust file that knows them all; made as a user would make them."""
    trust = folder / "trust.json"
    keys = [folder / f"{name}.json" for name in ("hub", *(f"device-{n}" for n in range(DEVICES)))]
    for key in keys:
        with contextlib.redirect_stdout(io.StringIO()):
            wireloom_command(["keys", "new", str(key)])
            wireloom_command(["keys", "trust", str(trust), str(key)])
    return trust, keys[1:]


async def device(url: str, key: Path, trust: Path, count: int) -> None:
    """A node of the mesh that signs its events."""
    async with Node("mesh://127.0.0.1:0", key=str(key), trust=str(trust), seeds=[url]) as node:
        async with node.changes() as changes, asyncio.timeout(30):
            while not node.peers:  # the mesh promises nothing to whom it does not know yet
                await anext(changes)
        for number in range(count):
            await node.publish(f"devices/{key.stem}/state", {"n": number, "on": number % 2 == 0})
            await asyncio.sleep(0.02)


async def everyday(url: Callable[[str], str], key: Path, trust: Path) -> None:
    """A little of everything, every second, so that there is something to see; ends when it is cancelled."""
    async with (
        billing_service(url("yamp")),
        wireloom.connect(url("yamp")) as customer,
        wireloom.connect(url("wolpertinger")) as operator,
        wireloom.connect(url("hsp"), topics=TOPICS) as meter,
        wireloom.connect(url("emp")) as weather,
        Node("mesh://127.0.0.1:0", key=str(key), trust=str(trust), seeds=[url("mesh")]) as node,
    ):
        for number in itertools.count():
            with contextlib.suppress(wireloom.WireloomError):  # the hub may be away for a moment
                for name, topic in TOPICS.items():
                    await meter.publish(topic, {"meter": name, "n": number, "kwh": number / 1000}, ack=True)
                await weather.publish("weather/now", {"wind": number % 7, "sun": number % 5})
                await node.publish(f"devices/{key.stem}/state", {"n": number, "on": number % 2 == 0})
                await customer.request("Billing.Invoice", {"customer": number})
                await operator.request("Billing.Invoice", {"Customer": number})
            await asyncio.sleep(1)


def attack_mesh(port: int, key: Path) -> None:
    """A packet of a device that comes twice, and one whose content was changed on the way."""
    identity = load_identity(key)

    def packet(number: int) -> bytes:
        fields = (Field(Type.STRING, b"devices/door/open"), Field(Type.JSON, b'{"by": "somebody"}'))
        return frames.encode(sign_packet(Packet(number, EventType.EVENT, int(time.time()), fields), identity))

    honest, forged = packet(0x5EC0DE), packet(0xBADC0DE).replace(b"somebody", b"a thief!")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in (honest, honest, forged):
            sock.sendto(datagram, ("127.0.0.1", port))
            time.sleep(0.2)


def speak_nonsense(port: int) -> None:
    """Somebody takes the hub for a web server, and is told to go."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while sock.recv(1024):
            pass
    # Nobody is promised that a refusal is kept: the hub writes it down a few milliseconds later.
    time.sleep(0.2)


@contextlib.asynccontextmanager
async def slow_reader(url: str) -> AsyncIterator[None]:
    """Subscribes to everything and reads nothing: the hub drops events for it, and nobody else notices."""
    async with wireloom.connect(url, queue=1) as hub, hub.subscribe("energy/#"):
        yield
