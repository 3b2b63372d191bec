"""A small energy company on one hub: five protocols, some faults, a crash in the middle; at the end, the tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import wireloom
from examples.demo import company
from examples.demo.meter import TOPICS
from examples.demo.processes import Program, free_port
from wireloom.cli.main import main as command_line
from wireloom.model import WireloomError
from wireloom.pipeline.query import ask
from wireloom.pipeline.report import write_report

METERS, READINGS = len(TOPICS), 50_000
REQUESTS, FORECASTS, EVENTS = 40, 100, 50
FOLDER = Path("demo-data")
CONSOLE = 5080


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
        self.ports = {name: free_port() for name in ("hsp", "emp", "yamp", "wolpertinger", "mesh", "http")}
        self.console = f"http://127.0.0.1:{free_port(CONSOLE)}"
        self.up: Program | None = None
        self.meters: list[Program] = []
        self.seen = 0

    @property
    def total(self) -> int:
        """Readings in all."""
        return METERS * self.readings

    @property
    def acknowledged(self) -> int:
        """Readings the hub has acknowledged."""
        return sum(meter.number for meter in self.meters)

    def url(self, protocol: str) -> str:
        """Where the hub speaks a protocol."""
        return f"{protocol}://127.0.0.1:{self.ports[protocol]}"

    def start(self) -> list[Path]:
        """`wireloom up` with a listener a protocol; returns the keys of the mesh's devices."""
        trust, devices = company.make_keys(self.folder)
        numbers = ", ".join(f'{number} = "{topic}"' for number, topic in TOPICS.items())
        extra = {
            "hsp": f"topics = {{ {numbers} }}\n",
            "mesh": f'settings = {{ trust = "{trust}", key = "{self.folder / "hub.json"}", publish = ["alarms/#"] }}\n',
        }
        tables = [
            f'[[listener]]\nurl = "{self.url(name)}"\n{extra.get(name, "")}' for name in self.ports if name != "http"
        ]
        tables.append(f'[http]\nurl = "{self.url("http")}"\n[limits]\nqueue_bytes = 262144\n')
        config = self.folder / "hub.toml"
        config.write_text("\n".join(tables))
        words = ["--config", str(config), "--data", str(self.folder), "--console", self.console, "--trust", str(trust)]
        self.up = Program("wireloom up", "wireloom", "up", *words, log=self.folder / "up.log")
        self.up.wait_for("ready", 90)
        return devices

    def kill_hub(self) -> None:
        """Kill -9."""
        assert self.up is not None
        process = next(line for line in reversed(self.up.lines) if line.startswith("hub: process "))
        os.kill(int(process.rpartition(" ")[2]), signal.SIGKILL)

    def slowest(self) -> tuple[int, int]:
        """What the hub says about the peer that keeps it waiting: events lost, bytes in its queue."""
        with urllib.request.urlopen(f"{self.url('http')}/status", timeout=30) as answer:
            connections = json.load(answer)["connections"]
        return max((int(each["lost"]), int(each["queued_bytes"])) for each in connections)

    def in_table(self) -> int:
        """How many messages the table holds already."""
        try:
            return int(str(ask(self.warehouse, "select count(*) from messages").rows[0][0]))
        except WireloomError:
            return 0

    def readings_in_table(self) -> tuple[int, int]:
        """How many readings the table holds, and how many different ones."""
        try:
            copies, different = ask(
                self.warehouse,
                "select count(*), count(distinct (decode(body)::json->>'meter', decode(body)::json->>'n')) "
                "from messages where kind = 'event' and topic like 'energy/meters/%'",
            ).rows[0]
        except WireloomError:
            return 0, 0
        return int(str(copies)), int(str(different))

    def is_joined(self) -> bool:
        """Whether the batch that brought the messages has brought the other tables, too: they come after them."""
        seen = ask(self.warehouse, "select (select count(*) from exchanges), (select count(*) from nodes)").rows[0]
        return all(int(str(count)) > 0 for count in seen)

    def status(self) -> str:
        """How it goes."""
        return (
            f"acknowledged {self.acknowledged:,} of {self.total:,}, subscriber saw {self.seen:,}, "
            f"{self.in_table():,} messages in the table"
        )

    async def run(self) -> bool:
        """The whole scenario; True when every acknowledged reading is in the table."""
        say = self.screen.say
        say("starting hub, pipeline and console with `wireloom up` (Spark takes a few seconds more; it catches up)")
        devices = await asyncio.to_thread(self.start)
        say(f"watch it live: {self.console}")
        watcher = asyncio.create_task(self._subscribe())
        await asyncio.sleep(0.5)
        say(f"{METERS} meters send {self.readings:,} acknowledged readings each over hsp")
        self.meters = [
            Program(
                f"meter {n}",
                *("examples.demo.meter", self.url("hsp"), str(n), str(self.readings)),
                log=self.folder / "meters.log",
            )
            for n in TOPICS
        ]
        async with company.slow_reader(self.url("emp")):
            await self._business(devices)
            await asyncio.to_thread(self._trouble, devices[0])
            await self._until(lambda: self.acknowledged > self.total * 2 // 5)
            lost, waiting = await asyncio.to_thread(self.slowest)
            say(f"for the reader that does not read {lost:,} events were dropped and {waiting:,} bytes wait")
        say("kill -9 of the hub, in the middle of it; `wireloom up` starts it again")
        self.kill_hub()
        await self._until(lambda: not any(meter.running for meter in self.meters))
        failed = [meter for meter in self.meters if meter.process.returncode]
        if failed:
            raise RuntimeError(f"{failed[0].name} failed: {failed[0].last_words()}")
        say(f"all {self.acknowledged:,} readings are acknowledged; waiting for the tables")
        # Not counted by responses: what the hub said last before it was killed may be missing in its journal.
        await self._until(lambda: self.readings_in_table()[1] >= self.total and self.is_joined())
        say(f"the live subscriber saw {self.seen:,} of them; what it missed while the hub was down is in the tables")
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        return await asyncio.to_thread(self.show_tables)

    async def _business(self, devices: list[Path]) -> None:
        """What the company does all day, in the other four protocols."""
        say, yamp = self.screen.say, self.url("yamp")
        async with company.billing_service(yamp):
            (answers, steps), (answered, refused), *_ = await asyncio.gather(
                company.customer(yamp, REQUESTS),
                company.operator(self.url("wolpertinger"), REQUESTS),
                company.weather_feed(self.url("emp"), FORECASTS),
                *(company.device(self.url("mesh"), key, self.folder / "trust.json", EVENTS) for key in devices),
            )
        say(f"billing on yamp answered {answers} customers with {steps} steps of progress")
        say(f"an operator called billing over wolpertinger: {answered} answered, {refused} refused")
        say(f"{FORECASTS} acknowledged forecasts with compressed bodies over emp")
        say(f"{len(devices)} devices sent {EVENTS} signed events each into the mesh")

    def _trouble(self, key: Path) -> None:
        company.attack_mesh(self.ports["mesh"], key)
        company.speak_nonsense(self.ports["hsp"])
        self.screen.say(
            "faults: a replayed and a forged mesh packet, HTTP on the hsp port, a reader that does not read"
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        assert self.up is not None
        while not await asyncio.to_thread(condition):
            if not self.up.running:
                raise RuntimeError(f"wireloom up ended: {self.up.last_words()}")
            self.screen.show(await asyncio.to_thread(self.status))
            await asyncio.sleep(0.3)

    async def _subscribe(self) -> None:
        async with wireloom.connect(self.url("hsp")) as hub, hub.subscribe("energy/#") as readings:
            async for _ in readings:
                self.seen += 1

    def show_tables(self) -> bool:
        """What the warehouse holds, and whether it is all there."""
        say = self.screen.say
        queries = {
            "messages by protocol and topic": "select protocol, topic, kind, count(*) as messages, "
            "sum(wire_size)::bigint as bytes from messages where kind in ('event', 'request') "
            "and topic is not null group by all order by all",
            "latencies": "select topic, protocol, verb, outcome, count(*) as times, "
            "round(quantile_cont(latency_us, 0.5) / 1000, 1) as p50_ms, "
            "round(quantile_cont(latency_us, 0.99) / 1000, 1) as p99_ms from exchanges "
            "where topic is not null group by all order by all",
            "rejects": "select protocol, clause, count(*) as times, any_value(detail) as detail from rejects "
            "group by all order by all",
            "findings": "select rule, severity, count(*) as times from findings group by all order by all",
        }
        for title, query in queries.items():
            say(title)
            command_line(["sql", query, "--warehouse", str(self.warehouse)])
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
        for program in (*self.meters, self.up):
            if program is not None:
                program.stop()


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running")
    parser.add_argument("--readings", type=int, default=READINGS, help="readings a meter sends")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    demo = Demo(arguments.folder, arguments.readings)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # However it is ended, it leaves no process behind.
        signal.signal(number, signal.default_int_handler)
    try:
        complete = asyncio.run(demo.run())
        report = write_report(demo.warehouse, arguments.folder / "report.html")
        if arguments.keep:
            asyncio.run(_leave_running(demo, report))
    except (RuntimeError, WireloomError) as error:
        demo.screen.say(f"the demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        demo.screen.say("interrupted")
        return 130
    finally:
        demo.stop()
    if not arguments.keep:
        report.rename("demo-report.html")
        demo.screen.say(f"report: demo-report.html; journal and tables stay in {arguments.folder} until the next demo")
        demo.screen.say("`make demo KEEP=1` leaves hub, pipeline and console running, and the tables to ask")
    return 0 if complete else 1


async def _leave_running(demo: Demo, report: Path) -> None:
    demo.screen.say(f"console: {demo.console}   report: {report}   journal (for Wireshark): {demo.folder}/journal")
    print(f'  .venv/bin/wireloom sql "select * from messages limit 5" --warehouse {demo.warehouse}')
    print(f'  .venv/bin/wireloom pub {demo.url("hsp")} notes/hello \'{{"from": "me"}}\' --ack')
    demo.screen.say("everything goes on running, with a message now and then; stop it with Ctrl-C")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    device, trust = demo.folder / "device-0.json", demo.folder / "trust.json"
    everyday = asyncio.create_task(company.everyday(demo.url, device, trust))
    await stop.wait()
    everyday.cancel()
    await asyncio.gather(everyday, return_exceptions=True)


if __name__ == "__main__":
    raise SystemExit(main())
