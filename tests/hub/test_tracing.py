"""Traces: what the hub did with a message, as spans of OpenTelemetry, across protocols."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import wireloom
from tests.hub.running import HSP, config, data, data_ack, eventually, hub_on, journaled, stream_to, url_of
from wireloom.hub import Hub
from wireloom.hub.router import Router
from wireloom.model import ConfigError, Kind, Message

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
SCHEMES = ("emp", "hsp", "yamp", "wolpertinger")
TRACED = (
    "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n' for scheme in SCHEMES)
    + '[http]\nurl = "http://127.0.0.1:0"\n[tracing]\nurl = ""\n'
)


def spans_of(hub: Hub) -> InMemorySpanExporter:
    assert hub.tracing is not None
    exporter = InMemorySpanExporter()
    hub.tracing.provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def in_order(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def trace_ids(spans: list[ReadableSpan]) -> set[str]:
    return {f"{span.context.trace_id:032x}" for span in spans}  # type: ignore[union-attr]


def protocol_of(span: ReadableSpan) -> object:
    return (span.attributes or {}).get("network.protocol.name")


async def answer_yes(message: Message, peer: wireloom.Peer) -> str:
    return "yes"


async def test_a_request_from_emp_to_a_yamp_provider_is_one_trace_with_its_spans_in_order(tmp_path: Path) -> None:
    async with hub_on(tmp_path, TRACED) as hub:
        exporter = spans_of(hub)
        async with (
            wireloom.connect(url_of(hub, "yamp"), handler=answer_yes) as provider,
            wireloom.connect(url_of(hub, "emp")) as client,
        ):
            await provider.provide("math/double")
            assert await client.request("math/double", b"21", attributes=PARENT) == "yes"
            await eventually(lambda: len(exporter.get_finished_spans()) == 3)
    received, stored, asked = in_order(exporter)
    assert [received.name, stored.name, asked.name] == ["receive math/double", "journal", "request math/double"]
    assert trace_ids([received, stored, asked]) == {TRACE_ID}
    assert f"{received.parent.span_id:016x}" == SPAN_ID  # type: ignore[union-attr]
    assert stored.parent.span_id == asked.parent.span_id == received.context.span_id  # type: ignore[union-attr]
    assert (protocol_of(received), protocol_of(asked)) == ("emp", "yamp")
    assert asked.end_time <= received.end_time  # type: ignore[operator]
    assert received.status.is_ok or received.status.is_unset


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_event_is_one_trace_whatever_its_protocol(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, TRACED) as hub:
        exporter = spans_of(hub)
        async with (
            wireloom.connect(url_of(hub, "emp")) as reader,
            wireloom.connect(url_of(hub, scheme)) as writer,
            reader.subscribe("sensors/#") as events,
        ):
            await writer.publish("sensors/kitchen", b"21", ack=True)
            async with asyncio.timeout(20):
                event = await anext(events)
            await eventually(lambda: len(exporter.get_finished_spans()) == 3)
    spans = in_order(exporter)
    assert [span.name for span in spans] == ["receive sensors/kitchen", "journal", "deliver sensors/kitchen"]
    assert len(trace_ids(spans)) == 1
    assert [protocol_of(spans[0]), protocol_of(spans[2])] == [scheme, "emp"]
    # The subscriber goes on from the span in which the event was sent to it.
    sending = spans[2].context
    expected = f"00-{sending.trace_id:032x}-{sending.span_id:016x}-"  # type: ignore[union-attr]
    assert event.attributes["traceparent"].startswith(expected)


async def test_failures_are_marked_and_every_span_ends(tmp_path: Path) -> None:
    async def never(message: Message, peer: wireloom.Peer) -> None:
        await asyncio.sleep(60)

    async with hub_on(tmp_path, TRACED) as hub, wireloom.connect(url_of(hub, "emp")) as client:
        exporter = spans_of(hub)
        with pytest.raises(wireloom.RequestFailed, match="404"):
            await client.request("nobody/there")
        async with wireloom.connect(url_of(hub, "yamp"), handler=never, reconnect=False) as provider:
            await provider.provide("slow")
            asking = asyncio.create_task(client.request("slow", timeout=30))
            await eventually(lambda: len(hub.router.exchanges) == 1)
            next(c for c in hub.connections.values() if hub.router.providers.patterns(c)).driver.abort()
            with pytest.raises(wireloom.RequestFailed, match="503"):
                await asking
        # Two of the first request, three of the second.
        await eventually(lambda: len(exporter.get_finished_spans()) == 5)
    errors = {span.name: span.status.description for span in exporter.get_finished_spans() if span.status.description}
    assert "404" in str(errors["receive nobody/there"])
    assert "503" in str(errors["receive slow"])
    assert "lost" in str(errors["request slow"])


async def test_requests_that_nobody_waits_for_any_longer_end_their_spans(tmp_path: Path) -> None:
    async def never(message: Message, peer: wireloom.Peer) -> None:
        await asyncio.sleep(60)

    async with hub_on(tmp_path, TRACED + "[limits]\nrequest_timeout = 1.0\n") as hub:
        exporter = spans_of(hub)
        async with (
            wireloom.connect(url_of(hub, "yamp"), handler=never) as provider,
            wireloom.connect(url_of(hub, "yamp")) as client,
        ):
            await provider.provide("slow/#")
            given_up = asyncio.create_task(client.request("slow/cancelled"))
            await eventually(lambda: len(hub.router.exchanges) == 1)
            given_up.cancel()
            with pytest.raises(wireloom.RequestFailed, match="504"):
                await client.request("slow/late")
            await eventually(lambda: len(exporter.get_finished_spans()) == 6)
    why = {span.name: span.status.description for span in exporter.get_finished_spans() if span.name != "journal"}
    cancelled = next(span for span in exporter.get_finished_spans() if span.name == "request slow/cancelled")
    assert (cancelled.attributes or {})["wireloom.status"] == "cancelled"
    assert (why["receive slow/late"] or "").startswith("504")
    assert why["request slow/late"] == "no answer in time"


async def test_what_a_route_gives_a_topic_is_traced(tmp_path: Path) -> None:
    route = '[[route]]\nlistener = "emp://127.0.0.1:0"\ntype = 200\nto = "legacy"\n'
    async with hub_on(tmp_path, TRACED + route) as hub:
        exporter = spans_of(hub)
        async with wireloom.connect(url_of(hub, "emp")) as peer, peer.subscribe("legacy") as events:
            peer.send(Message(Kind.OTHER, None, b"1", attributes={"type": "200"}))
            async with asyncio.timeout(20):
                await anext(events)
            await eventually(lambda: len(exporter.get_finished_spans()) == 3)
    assert [span.name for span in in_order(exporter)] == ["receive emp", "journal", "deliver legacy"]


async def test_a_large_read_is_a_span_for_each_topic(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HSP + '[tracing]\nurl = ""\n') as hub:
        exporter = spans_of(hub)
        async with wireloom.connect(url_of(hub)) as peer, peer.subscribe("sensors/#") as events:
            _, writer = await stream_to(hub)
            writer.write(b"".join(data_ack(n, b"k") + data(b"c", 8) for n in range(200)))
            async with asyncio.timeout(20):
                for _ in range(400):
                    await anext(events)
            writer.close()
    spans = exporter.get_finished_spans()
    counted = [
        (span.attributes or {}).get("messaging.batch.message_count", 1) for span in spans if "receive" in span.name
    ]
    assert sum(map(int, counted)) == 400  # type: ignore[call-overload]
    assert len(counted) < 400
    assert {span.name for span in spans} == {
        "receive sensors/kitchen", "receive sensors/cellar", "journal", "deliver sensors/kitchen",
        "deliver sensors/cellar",
    }  # fmt: skip


async def test_http_brings_a_context_and_webhooks_pass_it_on(tmp_path: Path) -> None:
    got: list[dict[str, str]] = []
    with receiver(lambda path, headers, body: got.append(headers)) as port:
        hook = f'[[webhook]]\nname = "out"\nurl = "http://127.0.0.1:{port}/"\ntopic = "shop/#"\n'
        async with hub_on(tmp_path, TRACED + hook) as hub:
            exporter = spans_of(hub)
            event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(hub.urls["http"] + "/events/shop/sold", data=b"1", headers=event | PARENT) as answer,
            ):
                assert answer.status == 204
            await eventually(lambda: len(got) == 1, 30)
            await eventually(lambda: len(exporter.get_finished_spans()) == 3)
    spans = in_order(exporter)
    assert [span.name for span in spans] == ["receive shop/sold", "journal", "deliver shop/sold"]
    assert trace_ids(spans) == {TRACE_ID}
    assert got[0]["traceparent"].startswith(f"00-{TRACE_ID}-{spans[2].context.span_id:016x}")  # type: ignore[union-attr]
    assert got[0]["ce-traceparent"] == PARENT["traceparent"]


async def test_spans_are_sent_by_otlp_over_http(tmp_path: Path) -> None:
    batches: list[tuple[str, bytes]] = []
    with receiver(lambda path, headers, body: batches.append((path, body))) as port:
        async with hub_on(
            tmp_path, TRACED.replace('url = ""', f'url = "http://127.0.0.1:{port}"\nservice = "cellar"')
        ) as hub:
            async with wireloom.connect(url_of(hub, "hsp")) as peer:
                await peer.publish("sensors/kitchen", b"21", ack=True)
        # The hub has stopped: everything was sent.
    assert {path for path, _ in batches} == {"/v1/traces"}
    sent = [ExportTraceServiceRequest.FromString(body).resource_spans[0] for _, body in batches]
    services = [each.value.string_value for r in sent for each in r.resource.attributes if each.key == "service.name"]
    assert set(services) == {"cellar"}
    assert [span.name for r in sent for scope in r.scope_spans for span in scope.spans] == [
        "journal",
        "receive sensors/kitchen",
    ]


async def test_senders_decide_whether_their_traces_are_kept(tmp_path: Path) -> None:
    async with hub_on(tmp_path, TRACED + "sample = 0\n") as hub:
        exporter = spans_of(hub)
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            await peer.publish("a", b"", ack=True)
            await peer.publish("b", b"", ack=True, attributes=PARENT)
            await peer.publish("c", b"", ack=True, attributes={"traceparent": PARENT["traceparent"][:-1] + "0"})
            await eventually(lambda: len(exporter.get_finished_spans()) == 2)
    assert {span.name for span in exporter.get_finished_spans()} == {"receive b", "journal"}


async def test_without_the_table_nothing_is_traced_and_a_context_still_passes(tmp_path: Path) -> None:
    async with hub_on(tmp_path, TRACED.partition("[tracing]")[0]) as hub:
        assert hub.tracing is None
        assert type(hub.router) is Router
        async with wireloom.connect(url_of(hub, "emp")) as peer, wireloom.connect(url_of(hub, "emp")) as other:
            async with peer.subscribe("a") as events:
                await other.publish("a", b"", attributes=PARENT)
                async with asyncio.timeout(20):
                    assert (await anext(events)).attributes["traceparent"] == PARENT["traceparent"]
    kept = [each.message for each in journaled(tmp_path) if each.message.kind is Kind.EVENT]
    assert kept[0].attributes["traceparent"] == PARENT["traceparent"]


@pytest.mark.parametrize(
    ("table", "line", "said"),
    [
        ("[tracing]\nsample = 2", 2, "from 0 to 1"),
        ('[tracing]\nurl = "collector:4318"', 2, "http://127.0.0.1:4318"),
        ("[tracing]\nrate = 1", 2, "known: sample, service, url"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, table: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"hub.toml:{line}: tracing: .*{said}"):
        config(tmp_path, table)


WITHOUT = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Nothing())
from wireloom.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


def test_where_the_packages_are_missing_the_configuration_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    for text, code in (("[http]\n", 0), ("[http]\n[tracing]\n", 2)):
        file.write_text(text)
        words = [sys.executable, "-c", WITHOUT, "hub", "check", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert "hub.toml:2: tracing: the package opentelemetry.sdk is not installed" in done.stderr
    assert "pip install 'wireloom[tracing]'" in done.stderr


@contextmanager
def receiver(take: object) -> Iterator[int]:
    """A real HTTP server that answers 200 to every POST; its port."""
    assert callable(take)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
