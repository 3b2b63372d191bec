"""Hub, streaming pipeline, meters and a subscriber; the hub is killed in the middle; at the end, the tables."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import sys
import time
from pathlib import Path

import wireloom
from examples.demo.meter import TOPICS
from examples.demo.processes import Program, free_port
from wireloom.cli.pipeline import run_sql
from wireloom.model import WireloomError
from wireloom.pipeline.query import ask

METERS, READINGS = len(TOPICS), 75_000
FOLDER = Path("demo-data")
FEEDS = {"emp": "weather/wind", "yamp": "billing/prices", "wolpertinger": "billing/tariffs", "mesh": "alarms/door"}
"""Small feeds in the other protocols, each to a topic of its own."""


class Screen:
    """Progress: one line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._open = False
        self._told = 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._open:
            print()
            self._open = False
        print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)

    def show(self, text: str) -> None:
        """How it goes at the moment."""
        if self._live:
            print(f"\r\033[K[{time.monotonic() - self._began:5.1f} s] {text}", end="", flush=True)
            self._open = True
        elif time.monotonic() - self._told > 3:
            self._told = time.monotonic()
            self.say(text)


class Demo:
    """Everything that runs, and what is known about it."""

    def __init__(self, folder: Path, readings: int) -> None:
        self.screen = Screen()
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.readings = readings
        self.ports = {name: free_port() for name in ("hsp", *FEEDS)}
        self.hub: Program | None = None
        self.pipeline: Program | None = None
        self.meters: list[Program] = []
        self.seen = 0
        self.kills = 0

    @property
    def total(self) -> int:
        """Readings in all."""
        return METERS * self.readings

    @property
    def acknowledged(self) -> int:
        """Readings the hub has acknowledged."""
        return sum(meter.number for meter in self.meters)

    def start_hub(self) -> None:
        """`wireloom hub` with a listener a protocol."""
        config = self.folder / "hub.toml"
        tables = [
            f'[[listener]]\nurl = "{name}://127.0.0.1:{port}"\nprofile = true' for name, port in self.ports.items()
        ]
        # Nobody has a key in this demo, so the mesh listener takes events that are not signed.
        tables[list(self.ports).index("mesh")] += '\nsettings = { require = "any" }'
        numbers = ", ".join(f'{number} = "{topic}"' for number, topic in TOPICS.items())
        tables[0] += f"\ntopics = {{ {numbers} }}"
        config.write_text("\n".join([*tables, '[http]\nurl = "off"\n']))
        words = ["wireloom", "hub", "--config", str(config), "--data", str(self.folder)]
        self.hub = Program("the hub", *words, log=self.folder / "hub.log")
        self.hub.wait_for("ready")

    def start_pipeline(self) -> None:
        """`wireloom pipeline run --continuous`."""
        words = ["--input", str(self.folder / "journal"), "--warehouse", str(self.warehouse), "--continuous"]
        self.pipeline = Program("the pipeline", "wireloom", "pipeline", "run", *words, log=self.folder / "pipeline.log")

    def url(self, protocol: str) -> str:
        """Where the hub speaks a protocol."""
        return f"{protocol}://127.0.0.1:{self.ports[protocol]}"

    def in_table(self, condition: str = "true") -> int:
        """How many messages the table holds already."""
        try:
            return int(str(ask(self.warehouse, f"select count(*) from messages where {condition}").rows[0][0]))
        except WireloomError:
            return 0

    def readings_in_table(self) -> tuple[int, int]:
        """How many readings the table holds, and how many different ones."""
        copies, different = ask(
            self.warehouse,
            "select count(*), count(distinct (decode(body)::json->>'meter', decode(body)::json->>'n')) from messages "
            "where kind = 'request' and topic like 'energy/meters/%'",
        ).rows[0]
        return int(str(copies)), int(str(different))

    def status(self) -> str:
        """How it goes."""
        return (
            f"acknowledged {self.acknowledged:,} of {self.total:,}, subscriber saw {self.seen:,}, "
            f"{self.in_table():,} messages in the table"
        )

    async def run(self) -> bool:
        """The whole scenario; True when every acknowledged reading is in the table."""
        say = self.screen.say
        say("starting the hub")
        self.start_hub()
        say("starting the pipeline (Spark takes a few seconds; it catches up)")
        self.start_pipeline()
        watcher = asyncio.create_task(self._subscribe())
        await asyncio.sleep(0.5)
        say(f"{METERS} meters send {self.readings:,} acknowledged readings each over hsp")
        self.meters = [
            Program(
                f"meter {n}",
                "examples.demo.meter",
                self.url("hsp"),
                str(n),
                str(self.readings),
                log=self.folder / "meters.log",
            )
            for n in TOPICS
        ]
        for protocol, topic in FEEDS.items():
            await self._feed(protocol, topic)
        self._misbehave()
        await self._until(lambda: self.acknowledged > self.total * 2 // 5)
        say("kill -9 of the hub, in the middle of it")
        assert self.hub is not None
        self.hub.kill()
        self.kills += 1
        await asyncio.sleep(1)
        self.start_hub()
        say("the hub is back; the meters reconnect and send again what was not acknowledged")
        await self._until(lambda: not any(meter.running for meter in self.meters))
        failed = [meter for meter in self.meters if meter.process.returncode]
        if failed:
            raise RuntimeError(f"{failed[0].name} failed: {failed[0].last_words()}")
        say(f"all {self.acknowledged:,} readings are acknowledged; waiting for the tables")
        # Not counted by responses: what the hub said last before it was killed may be missing in its journal.
        await self._until(lambda: self.readings_in_table()[1] >= self.total or not self._pipeline_runs())
        watcher.cancel()
        self.stop()
        return self.show_tables()

    def _pipeline_runs(self) -> bool:
        assert self.pipeline is not None
        if not self.pipeline.running:
            raise RuntimeError(f"the pipeline ended: {self.pipeline.last_words()}")
        return True

    async def _until(self, condition: object) -> None:
        assert callable(condition)
        while not await asyncio.to_thread(condition):
            self.screen.show(await asyncio.to_thread(self.status))
            self._pipeline_runs()
            await asyncio.sleep(0.3)

    async def _subscribe(self) -> None:
        async with wireloom.connect(self.url("hsp")) as hub, hub.subscribe("energy/#") as readings:
            async for _ in readings:
                self.seen += 1

    async def _feed(self, protocol: str, topic: str) -> None:
        """A few events in another protocol, acknowledged where it has a word for that."""
        acknowledged = protocol != "mesh"
        async with wireloom.connect(self.url(protocol)) as hub:
            for number in range(100):
                await hub.publish(topic, {"n": number}, ack=acknowledged)
        self.screen.say(f"100 {'acknowledged ' if acknowledged else ''}events to {topic} over {protocol}")

    def _misbehave(self) -> None:
        """Somebody sends what is no hsp at all."""
        with socket.create_connection(("127.0.0.1", self.ports["hsp"])) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")

    def show_tables(self) -> bool:
        """What the warehouse holds, and whether it is all there."""
        say = self.screen.say
        queries = {
            "messages by protocol and topic": "select protocol, replace(topic, '$hub/publish/', '') as topic, "
            "count(*) as messages, sum(wire_size)::bigint as bytes from messages where kind in ('event', 'request') "
            "and topic not like '$hub/sub%' group by all order by all",
            "traffic by minute": "select minute, protocol, sum(messages)::bigint as messages, "
            "sum(bytes)::bigint as bytes from traffic group by all order by all",
            "rejects": "select protocol, clause, detail, size from rejects",
        }
        for title, query in queries.items():
            say(title)
            run_sql(argparse.Namespace(warehouse=str(self.warehouse), query=query, json=False, csv=False))
        copies, different = self.readings_in_table()
        complete = different == self.total == self.acknowledged
        if complete:
            say(f"every one of the {self.total:,} acknowledged readings is in `messages`")
            if copies > self.total:
                say(f"{copies - self.total:,} are there twice: the crash hid that they had been acknowledged")
        else:
            say(f"WRONG: {self.acknowledged:,} readings were acknowledged, {different:,} are in `messages`")
        return complete

    def stop(self) -> None:
        """Stop everything that runs."""
        for program in (*self.meters, self.pipeline, self.hub):
            if program is not None:
                program.stop()


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the data in demo-data")
    parser.add_argument("--readings", type=int, default=READINGS, help="readings a meter sends")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    demo = Demo(arguments.folder, arguments.readings)
    try:
        complete = asyncio.run(demo.run())
    except (RuntimeError, WireloomError) as error:
        demo.screen.say(f"the demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        demo.screen.say("interrupted")
        return 130
    finally:
        demo.stop()
    if arguments.keep:
        demo.screen.say(
            f"kept: {arguments.folder}/journal (open it in Wireshark) and {arguments.folder}/warehouse; try"
        )
        print(f'  .venv/bin/wireloom sql "select * from messages limit 5" --warehouse {arguments.folder}/warehouse')
        print(f"  .venv/bin/wireloom journal ls {arguments.folder}/journal")
    else:
        shutil.rmtree(arguments.folder, ignore_errors=True)
        demo.screen.say("cleaned up; `make demo KEEP=1` leaves the journal and the tables to look at")
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
