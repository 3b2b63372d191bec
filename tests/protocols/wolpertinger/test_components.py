"""Components and typed calls, over real sockets."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

import wireloom
from wireloom.model import (
    BodyError,
    ConfigError,
    HandshakeFailed,
    Kind,
    Message,
    PeerClosed,
    RequestFailed,
    RequestTimeout,
)
from wireloom.peers.components import Components, Int64, Structured, UInt64, component, method
from wireloom.peers.handlers import Result, Service
from wireloom.peers.peer import Peer
from wireloom.protocols.contract import Role
from wireloom.protocols.wolpertinger.session import WolpertingerSession

NOW = datetime(2013, 3, 9, 21, 1, 47, 668000, tzinfo=UTC)
SOME = uuid.UUID("7e4c8b32-f269-4b48-a6ba-625df091ad6a")
URL = "wolpertinger://127.0.0.1:0"


@component("Test")
class Everything:
    """What a peer could want to call."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    @method
    def Echo(self, value: object) -> object:  # noqa: N802
        return value

    @method
    async def Add(self, a: int, b: int = 10) -> int:  # noqa: N802
        await asyncio.sleep(0)
        return a + b

    @method
    def Sum(self, *numbers: float) -> float:  # noqa: N802
        return sum(numbers)

    @method
    def Typed(self, b: bool, f: float, s: str, u: uuid.UUID, d: datetime, n: list[int], o: int | str) -> list[object]:  # noqa: N802
        return [b, f, s, u, d, n, o]

    @method
    def Wide(self, number: Int64) -> UInt64:  # noqa: N802
        return UInt64(number)

    @method
    def Nothing(self, value: str) -> None:  # noqa: N802
        self.noted.append(value)

    @method
    def Maybe(self, there: bool) -> str | None:  # noqa: N802
        return "here" if there else None

    @method(name="Info")
    def info(self, info: Structured) -> Structured:
        return info

    @method(trust=2)
    def Secret(self) -> str:  # noqa: N802
        return "secret"

    @method
    def Fail(self, code: int) -> str:  # noqa: N802
        raise RequestFailed(str(code))

    @method
    def Raise(self, what: str) -> str:  # noqa: N802
        raise {"permission": PermissionError, "file": FileNotFoundError, "value": ValueError}[what]

    @method
    def Wrong(self) -> int:  # noqa: N802
        return "not a number"  # type: ignore[return-value]

    @method
    async def Slow(self, seconds: float) -> str:  # noqa: N802
        await asyncio.sleep(seconds)
        return "done"

    @method
    async def Steps(self, count: int) -> AsyncIterator[object]:  # noqa: N802
        for step in range(count):
            await asyncio.sleep(0)
            yield step
        yield Result(count)

    @method(thread=True)
    def Blocking(self, seconds: float) -> str:  # noqa: N802
        time.sleep(seconds)
        return "slept"

    @method
    def Who(self, *, peer: Peer) -> str:  # noqa: N802
        return peer.name

    def hidden(self) -> str:
        return "not for peers"


@pytest.fixture
async def talk() -> AsyncIterator[tuple[Peer, Everything]]:
    there = Everything()
    async with wireloom.serve(URL, Components(there)) as server, wireloom.connect(server.url) as peer:
        yield peer, there


Talk = tuple[Peer, Everything]


async def test_typed_values_go_there_and_back(talk: Talk) -> None:
    peer, _ = talk
    for value in ("hello <&> é\r\n", 7, Int64(7), 2**40, UInt64(2**63), 1.5, True, SOME, NOW, [1, ["a", SOME]], [], ""):
        assert await peer.call("Test", "Echo", value) == value
    assert await peer.call("Test", "Typed", True, 1.5, "s", SOME, NOW, [1, 2], "x") == [
        True, 1.5, "s", SOME, NOW, [1, 2], "x",
    ]  # fmt: skip
    assert await peer.call("Test", "Wide", Int64(5), returns=UInt64) == 5
    info = Structured("clientInfo", '<Name xmlns="urn:x">me</Name>')
    assert await peer.call("Test", "Info", info) == info


async def test_results_are_typed(talk: Talk) -> None:
    peer, _ = talk
    assert await peer.call("Test", "Add", 2, 3, returns=int) == 5
    assert await peer.call("Test", "Maybe", True, returns=str | None) == "here"
    assert await peer.call("Test", "Maybe", False, returns=str | None) is None
    with pytest.raises(RequestFailed, match="401"):
        await peer.call("Test", "Add", 2, 3, returns=str)


async def test_defaults_and_further_parameters(talk: Talk) -> None:
    peer, _ = talk
    assert await peer.call("Test", "Add", 2) == 12
    assert await peer.call("Test", "Sum", 1, 2.5, 3) == 6.5
    assert await peer.call("Test", "Sum") == 0.0


async def test_a_method_without_response_value_is_done_when_it_was_delivered(talk: Talk) -> None:
    peer, there = talk
    assert await peer.call("Test", "Nothing", "noted", returns=None) is None
    assert there.noted == ["noted"]
    with pytest.raises(RequestTimeout):
        await peer.call("Test", "Nothing", "waited for", timeout=0.2)


@pytest.mark.parametrize(
    ("where", "name", "arguments", "code"),
    [
        ("Nope", "Echo", (), "304"),
        ("Test", "Nope", (), "303"),
        ("Test", "echo", ("x",), "303"),
        ("Test", "hidden", (), "303"),
        ("Test", "info", (), "303"),
        ("Test", "Secret", (), "201"),
        ("Test", "Add", (), "305"),
        ("Test", "Add", (1, 2, 3), "305"),
        ("Test", "Add", ("1", 2), "305"),
        ("Test", "Add", (1.5, 2), "305"),
        ("Test", "Add", (True, 2), "305"),
        ("Test", "Wide", (5,), "305"),
        ("Test", "Typed", (True, 1.5, "s", str(SOME), NOW, [1], 1), "305"),
        ("Test", "Typed", (True, 1.5, "s", SOME, NOW, ["1"], 1), "305"),
        ("Test", "Typed", (True, 1.5, "s", SOME, NOW, [1], 1.5), "305"),
        ("Test", "Wrong", (), "306"),
        ("Test", "Fail", (502,), "502"),
        ("Test", "Fail", (500,), "500"),
        ("Test", "Fail", (77777,), "77777"),
        ("Test", "Raise", ("permission",), "201"),
        ("Test", "Raise", ("file",), "502"),
        ("Test", "Raise", ("value",), "100"),
        ("Core", "Nope", (), "304"),
        ("Authentication", "Nope", (), None),
    ],
)
async def test_errors_have_their_codes(
    talk: Talk, where: str, name: str, arguments: tuple[object, ...], code: str | None
) -> None:
    peer, _ = talk
    if code is None:
        with pytest.raises(wireloom.NotSupported):
            await peer.call(where, name)
        return
    with pytest.raises(RequestFailed) as caught:
        await peer.call(where, name, *arguments)
    assert caught.value.code == code


async def test_component_names_are_compared_without_case(talk: Talk) -> None:
    peer, _ = talk
    assert await peer.call("tEST", "Add", 1, 2) == 3


async def test_the_common_request_calls_methods_as_well(talk: Talk) -> None:
    peer, _ = talk
    assert await peer.request("Test.Add", [2, 3]) == 5
    assert await peer.request("Test.Echo", "text") == "text"
    assert await peer.request("Test.Echo", [[1, "a", True, 1.5]]) == [1, "a", True, 1.5]
    assert await peer.request("Test.Maybe", [False]) == b""


async def test_the_caller_is_known_to_the_method(talk: Talk) -> None:
    peer, _ = talk
    assert await peer.call("Test", "Who") == peer.pipe.sockname


async def test_many_calls_at_once_find_their_answers(talk: Talk) -> None:
    peer, _ = talk
    answers = await asyncio.gather(*(peer.call("Test", "Add", number, 1) for number in range(200)))
    assert answers == list(range(1, 201))


async def test_long_work_sends_heartbeats_by_itself_and_the_caller_waits() -> None:
    async with (
        wireloom.serve(URL, Components(Everything()), settings={"heartbeat": 0.1}) as server,
        wireloom.connect(server.url) as peer,
    ):
        assert await peer.call("Test", "Slow", 1.0, timeout=0.5) == "done"
        assert await peer.call("Test", "Blocking", 1.0, timeout=0.5) == "slept"
    async with (
        wireloom.serve(URL, Components(Everything()), settings={"heartbeat": 0.0}) as server,
        wireloom.connect(server.url) as peer,
    ):
        with pytest.raises(RequestTimeout):
            await peer.call("Test", "Slow", 1.0, timeout=0.5)


async def test_a_call_waits_30_seconds_for_its_answer_unless_told_otherwise(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, _ = talk
    patience: list[float | None] = []
    ask = peer.ask

    async def noting(message: Message, *, timeout: float | None) -> Message:  # noqa: ASYNC109
        patience.append(timeout)
        return await ask(message, timeout=timeout)

    monkeypatch.setattr(peer, "ask", noting)
    await peer.call("Test", "Echo", "x")
    await peer.call("Test", "Echo", "x", timeout=7.0)
    assert patience == [30.0, 7.0]


async def test_without_a_confirmation_there_is_no_answer_either() -> None:
    quiet: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        quiet.append(writer)
        await reader.read()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"wolpertinger://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = {"delivery_timeout": 0.05, "resends": 1}
        async with wireloom.connect(url, settings=settings, reconnect=False) as peer:
            with pytest.raises(PeerClosed):
                await peer.call("Test", "Echo", "x")
        async with wireloom.connect(url, reconnect=False) as peer:
            with pytest.raises(RequestTimeout):
                await peer.call("Test", "Echo", "x", timeout=0.05)
        for writer in quiet:
            writer.close()


async def test_the_steps_of_a_generator_are_heartbeats_and_its_result_the_answer(talk: Talk) -> None:
    peer, _ = talk
    async with peer.messages() as stream:
        assert await peer.call("Test", "Steps", 3) == 3
        first = await anext(stream)
    assert first.kind is Kind.PROGRESS


async def test_a_large_call_over_the_line_stream_with_gzip_aes_and_splitting_and_a_heartbeat() -> None:
    text = "".join(str(uuid.UUID(int=number * 7919**5)) for number in range(5000))
    settings = {"heartbeat": 0.1}
    async with (
        wireloom.serve(URL, Components(Everything()), settings=settings) as server,
        wireloom.connect(server.url, settings={"authenticate": 2}) as peer,
    ):
        assert isinstance(peer.session, WolpertingerSession)
        assert peer.session.trust == 2
        async with peer.messages() as stream:
            slow = asyncio.create_task(peer.call("Test", "Slow", 0.5, timeout=5.0))
            assert await peer.call("Test", "Echo", text) == text
            assert await slow == "done"
            seen = [await anext(stream)]
            while not any("gzip" in each.attributes for each in seen) or Kind.PROGRESS not in {
                each.kind for each in seen
            }:
                seen.append(await anext(stream))
        assert await peer.call("Test", "Secret") == "secret"
    answer = next(each for each in seen if "gzip" in each.attributes)
    assert answer.attributes["encryption"] == "aes"
    assert int(answer.attributes["fragment_count"]) > 1
    assert answer.attributes["gzip"]
    assert Kind.PROGRESS in [each.kind for each in seen]


async def test_trust_4_over_the_line_stream_and_again_after_reconnecting() -> None:
    served = {"cluster_key": "aa" * 16, "users": {"ada": "pw"}, "required_trust": 4}
    asks = {"cluster_key": "aa" * 16, "user": "ada", "password": "pw", "authenticate": 4}
    async with wireloom.serve(URL, Components(Everything()), settings=served) as server:
        async with wireloom.connect(server.url, settings=asks) as peer:
            assert await peer.call("Test", "Secret") == "secret"
            server.connections[0].abort()
            while peer.connected:
                await asyncio.sleep(0.01)
            assert await peer.call("Test", "Secret") == "secret"
            assert peer.reconnects == 1
        async with wireloom.connect(server.url) as peer:
            with pytest.raises(RequestFailed, match="201"):
                await peer.call("Test", "Echo", 1)
        for wrong in ({"password": "no"}, {"cluster_key": "bb"}, {"user": "eve"}):
            with pytest.raises(HandshakeFailed, match="no trust"):
                await wireloom.connect(server.url, settings={**asks, **wrong})


async def test_events_and_subscriptions_over_the_line_stream() -> None:
    service = Service()
    taken: list[Message] = []

    @service.event("sensors/#")
    def take(message: Message) -> None:
        taken.append(message)

    @service.request("math/double")
    def double(message: Message) -> object:
        return {"twice": message.value()["n"] * 2}  # type: ignore[index,call-overload,operator]

    handler = Components(Everything(), fallback=service)
    async with wireloom.serve(URL, handler) as server, wireloom.connect(server.url) as peer:
        async with peer.subscribe("alerts/#") as alerts:
            await server.publish("alerts/fire", {"where": "kitchen"})
            assert (await anext(alerts)).value() == {"where": "kitchen"}
        await peer.publish("sensors/a", {"c": 1})
        await peer.publish("sensors/b", b"\xff", ack=True)
        assert await peer.request("math/double", {"n": 21}) == {"twice": 42}
        assert await peer.call("Test", "Add", 1, 2) == 3
        assert sorted((each.topic, each.body) for each in taken) == [("sensors/a", b'{"c":1}'), ("sensors/b", b"\xff")]


async def test_a_handler_of_one_client_can_be_called_by_the_server() -> None:
    async with wireloom.serve(URL) as server, wireloom.connect(server.url, handler=Components(Everything())) as peer:
        while not server.connections:
            await asyncio.sleep(0.01)
        assert await server.connections[0].call("Test", "Add", 1, 2) == 3
        assert peer.session.role is Role.CLIENT


async def test_plain_text_after_the_key_exchange_ends_the_connection() -> None:
    async with wireloom.serve(URL, Components(Everything())) as server:
        peer = await wireloom.connect(server.url, settings={"authenticate": 2}, reconnect=False)
        assert isinstance(peer.session, WolpertingerSession)
        peer.session._cipher = None
        with pytest.raises((PeerClosed, RequestFailed)):
            await peer.call("Test", "Echo", 1)
        await peer.close()


async def test_a_bad_line_is_refused_and_the_connection_stays() -> None:
    async with wireloom.serve(URL, Components(Everything())) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"nonsense\nmessage_id:5;%%\n")
        assert await reader.readline() == b"result:5;message_id:5;\n"
        writer.close()
        await writer.wait_closed()


async def test_values_that_cannot_be_sent_are_the_callers_mistake(talk: Talk) -> None:
    peer, _ = talk
    endless: list[object] = []
    endless.append(endless)
    no_such_time_in_utc = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    for value in (None, {"a": 1}, b"bytes", "\0", 2**70, endless, no_such_time_in_utc):
        with pytest.raises(BodyError):
            await peer.call("Test", "Echo", value)


def test_components_are_checked_when_they_are_registered() -> None:
    class Empty:
        pass

    class Odd:
        @method
        def Do(self, value: complex) -> str:  # noqa: N802
            return ""

    class Twice:
        @method(name="A")
        def a(self) -> str:
            return ""

        @method(name="A")
        def b(self) -> str:
            return ""

    class Named:
        @method
        def Do(self, *, value: str) -> str:  # noqa: N802
            return value

    class Core:
        @method
        def Do(self) -> None: ...  # noqa: N802

    for made, why in (
        (Empty(), "no method"), (Odd(), "complex"), (Twice(), "two methods"), (Named(), "named"), (Core(), "already"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            Components(made)
    with pytest.raises(ConfigError, match="already"):
        Components(Everything(), Everything())
