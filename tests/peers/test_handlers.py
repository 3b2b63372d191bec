"""`Service`: which function gets which message."""

from __future__ import annotations

import pytest

from wireloom import ConfigError, Kind, Message, Peer, RequestFailed, Service
from wireloom.testing import peer_pair


def call(service: Service, kind: Kind, topic: str) -> object:
    return service(Message(kind, topic), None)  # type: ignore[arg-type]


def test_exact_topic_goes_before_patterns_and_earlier_patterns_before_later() -> None:
    service = Service()
    service.request("a/#")(lambda message: "rest")
    service.request("a/+")(lambda message: "level")
    service.request("a/b")(lambda message: "exact")
    assert call(service, Kind.REQUEST, "a/b") == "exact"
    assert call(service, Kind.REQUEST, "a/c") == "rest"


def test_requests_and_events_are_apart() -> None:
    service = Service()
    service.request("x")(lambda message: "asked")
    service.event("x")(lambda message: "told")
    assert call(service, Kind.REQUEST, "x") == "asked"
    assert call(service, Kind.EVENT, "x") == "told"


def test_unknown_request_fails_and_unknown_event_is_ignored() -> None:
    with pytest.raises(RequestFailed, match="404"):
        call(Service(), Kind.REQUEST, "x")
    assert call(Service(), Kind.EVENT, "x") is None


def test_two_handlers_for_one_topic_are_a_mistake() -> None:
    service = Service()
    service.request("x")(lambda message: 1)
    with pytest.raises(ConfigError, match="has a handler already"):
        service.request("x")(lambda message: 2)


def test_wrong_pattern_is_found_when_it_is_written() -> None:
    with pytest.raises(ConfigError, match="last level"):
        Service().event("a/#/b")


def test_decorated_function_stays_what_it_was() -> None:
    service = Service()

    @service.request("x")
    def function(message: Message) -> int:
        return 1

    assert function(Message(Kind.REQUEST)) == 1
    assert service.topics == ("x",)


async def test_functions_may_take_the_peer_or_not() -> None:
    service = Service()
    peers: list[Peer] = []

    @service.request("alone")
    async def alone(message: Message) -> str:
        return "alone"

    @service.request("both")
    async def both(message: Message, peer: Peer) -> str:
        peers.append(peer)
        return "both"

    class Methods:
        async def method(self, message: Message) -> str:
            return "method"

    service.request("method")(Methods().method)
    async with peer_pair("emp", service) as (client, server):
        for topic in ("alone", "both", "method"):
            assert await client.request(topic) == topic
        assert peers == [server]
