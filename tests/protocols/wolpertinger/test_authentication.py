"""Trust from 0 to 4: every step, every way it can fail, and that failures cannot be told apart."""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.protocols.reading import data_of, joined, messages_of
from tests.protocols.wolpertinger.talk import (
    CALL_ID,
    HELLO,
    Pair,
    call,
    documents,
    entropy,
    line,
    opened,
    pair,
    results,
    said,
)
from wireloom.model import ConfigError, Direction, Kind, Message
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.wolpertinger import WOLPERTINGER, WolpertingerSettings, frames, layer1, layer2, transmission
from wireloom.protocols.wolpertinger.authentication import METHODS, STEPS
from wireloom.protocols.wolpertinger.keys import Cipher, KeyPair, prove
from wireloom.protocols.wolpertinger.layer2 import Error, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.protocols.wolpertinger.values import Value

KEY = "00ff" * 16
CLIENT: dict[str, object] = {"cluster_key": KEY.upper(), "user": "Ada", "password": "correct horse"}
SERVER: dict[str, object] = {"cluster_key": KEY, "users": {"ada": "correct horse"}}


def meet(level: int, *, client: dict[str, object] | None = None, server: dict[str, object] | None = None) -> Pair:
    """A client that climbs to a level, and its server."""
    both = pair({**CLIENT, "authenticate": level, **(client or {})}, {**SERVER, **(server or {})})
    both.settle()
    return both


# The way up


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_a_client_climbs_to_the_trust_it_is_told_to_reach(level: int) -> None:
    both = meet(level)
    assert both.client.state is SessionState.OPEN
    assert both.server.trust == level
    assert both.client.authentication.standing == level
    # Both ends prove that they are of the cluster; only the client is a user.
    assert both.client.trust == min(level, 3)
    assert both.server.authentication.user == ("ada" if level == 4 else None)


def test_the_conversation_opens_only_at_the_top() -> None:
    both = pair({**CLIENT, "authenticate": 4}, SERVER)
    states = set()
    while data := both.client.outgoing():
        states.add(both.client.state)
        both.server.receive(data, 0.0)
        both.client.receive(both.server.outgoing(), 0.0)
    assert SessionState.OPENING in states
    assert both.client.state is SessionState.OPEN


def test_calls_go_on_encrypted_and_compressed_and_split() -> None:
    both = meet(2, client={"split": 200})
    value = "large " * 2000
    both.client.send(
        Message(Kind.REQUEST, "Test.Echo", json.dumps([value]).encode(), content_type="application/json"), 0.0
    )
    before = len(both.lines)
    _, (came,) = both.settle()
    assert came.value() == [value]
    assert came.attributes["encryption"] == "aes"
    assert came.attributes["gzip"]
    assert int(came.attributes["fragment_count"]) > 1
    assert all(b"encryption:aes;" in each or b"result:" in each for _, each in both.lines[before:])


def test_encryption_begins_with_the_message_after_the_key_exchange() -> None:
    both = meet(3)
    sealed = [b"encryption:aes;" in each for _, each in both.lines if not each.startswith(b"result:")]
    # EstablishConnection, its answer, KeyExchange and its answer are plain; all others are not.
    assert sealed == [False] * 4 + [True] * (len(sealed) - 4)


def test_a_key_exchange_that_is_sent_again_is_confirmed_and_not_taken_for_plain_text() -> None:
    both = meet(2)
    again = [each for who, each in both.lines if who == "client" and not each.startswith(b"result:")][1]
    assert b"encryption" not in again
    run = joined(both.server.receive(again, 1.0))
    assert not run.messages
    assert both.server.state is SessionState.OPEN
    assert len(results(both.server.outgoing())) == 1


def test_what_the_application_says_during_the_key_exchange_waits_for_its_end() -> None:
    both = pair({**CLIENT, "authenticate": 2}, SERVER)
    both.server.receive(both.client.outgoing(), 0.0)
    both.client.receive(both.server.outgoing(), 0.0)
    offer = both.client.outgoing()
    # The server asked something before it saw the offer; the answer is ready before the server's key is here.
    asked = both.server.send(Message(Kind.REQUEST, "Client.Version"), 0.0)
    (came,) = messages_of(both.client.receive(both.server.outgoing(), 0.0))
    both.client.send(
        Message(Kind.RESPONSE, came.topic, b'"1"', correlation_id=came.id, content_type="application/json"), 0.0
    )
    assert documents(both.client.outgoing()) == []
    both.server.receive(offer, 0.0)
    _, (answer,) = both.settle()
    assert (answer.correlation_id, answer.value(), answer.attributes["encryption"]) == (asked.id, "1", "aes")


def test_establishing_a_connection_is_answered_with_a_guid_as_string() -> None:
    answers = [stranger().ask("EstablishConnection") for _ in range(2)]
    for answer in answers:
        assert isinstance(answer, Response)
        assert answer.value is not None
        assert answer.value.type == "string"
        assert str(uuid.UUID(str(answer.value.data))) == answer.value.data


@pytest.mark.parametrize(
    ("value", "connected"),
    [
        (Value("string", "5d7b3a52-6f0e-4c0c-8f58-0d4f3b1c9a11"), True),
        (Value("boolean", True), True),
        (Value("boolean", False), False),
        (Value("string", "no"), False),
        (Value("int32", 1), False),
        (None, False),
    ],
)
def test_a_client_takes_a_guid_or_true_for_a_connection(value: Value | None, connected: bool) -> None:
    client = opened(Role.CLIENT, **{**CLIENT, "authenticate": 1})
    (call,) = documents(client.outgoing())
    assert isinstance(call, RemoteMethodCall)
    client.receive(line(Response("Authentication", call.call_id, value)), 0.0)
    assert (client.state is SessionState.OPEN, client.trust) == ((True, 1) if connected else (False, 0))


def test_keys_and_tokens_are_never_the_same_twice() -> None:
    ciphers = set()
    for unique in (1, 2):
        both = Pair(
            WolpertingerSession(Role.CLIENT, WolpertingerSettings.parse({"authenticate": 2}), unique=unique),
            WolpertingerSession(Role.SERVER, WolpertingerSettings(), unique=unique),
        ).start()
        both.settle()
        assert both.client._cipher == both.server._cipher
        assert both.client._cipher is not None
        ciphers.add(both.client._cipher.key)
    assert len(ciphers) == 2


def test_the_public_key_the_iv_the_token_and_the_proof_are_as_the_decisions_say() -> None:
    both = pair({**CLIENT, "authenticate": 4}, SERVER)
    calls: list[RemoteMethodCall] = []
    values: list[object] = []
    while True:
        up, down = both.client.outgoing(), both.server.outgoing()
        if not up and not down:
            break
        for data, cipher in ((up, both.server._cipher), (down, both.client._cipher)):
            for frame in said(data):
                if isinstance(frame, frames.Data):
                    document = layer1.unpack(frame, both.client.settings, cipher)
                    if isinstance(document, RemoteMethodCall):
                        calls.append(document)
                    elif isinstance(document, Response):
                        values.append(document.value)
        both.server.receive(up, 0.0)
        both.client.receive(down, 0.0)
    by_method = {each.method: [str(value.data) for value in each.parameters] for each in calls}
    assert [each.method for each in calls] == [
        "EstablishConnection", "KeyExchange", "ClusterAuthGetToken", "ClusterAuthVerify",
        "ClusterAuthRequestVerification", "ClusterAuthVerify", "UserAuthGetToken", "UserAuthVerify",
    ]  # fmt: skip
    assert {each.component for each in calls} == {"Authentication"}
    public, iv = by_method["KeyExchange"]
    assert base64.b64decode(public)[:8] == b"ECK5\x42\0\0\0"
    assert len(base64.b64decode(iv)) == 16
    tokens = [str(each.data) for each in values if isinstance(each, Value) and len(str(each.data)) == 44]
    assert all(len(base64.b64decode(token)) == 32 for token in tokens)
    first = next(each for each in calls if each.method == "ClusterAuthVerify")
    assert str(first.parameters[0].data) == prove(KEY, tokens[0])
    assert by_method["UserAuthVerify"] == ["Ada", prove("correct horse", tokens[-1])]


# What fails, seen by the client


@pytest.mark.parametrize(
    ("client", "server", "why"),
    [
        ({"cluster_key": "aa"}, {}, "ClusterAuthVerify"),
        ({"cluster_key": ""}, {}, "ClusterAuthVerify"),
        ({}, {"cluster_key": ""}, "ClusterAuthGetToken"),
        ({"password": "wrong"}, {}, "UserAuthVerify"),
        ({"user": "nobody"}, {}, "UserAuthVerify"),
        ({"user": ""}, {}, "UserAuthVerify"),
    ],
)
def test_wrong_secrets_end_the_attempt(client: dict[str, object], server: dict[str, object], why: str) -> None:
    both = meet(4, client=client, server=server)
    assert both.client.state is SessionState.CLOSED
    assert both.client.close_reason == f"no trust: the peer refused Authentication.{why}"
    assert both.server.trust < 4
    if "Verify" in why:
        assert both.server.state is SessionState.CLOSED
        assert both.server.counters["wolpertinger.authentication.failed"] == 1


@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize("answer", ["error", "false", "empty", "wrong type", "garbage"])
def test_a_server_that_refuses_a_step_or_answers_nonsense_is_not_trusted(step: int, answer: str) -> None:
    """A server that plays along, up to one step."""
    both = pair({**CLIENT, "authenticate": STEPS[step].level}, SERVER)
    replaced = False
    while both.client.state is SessionState.OPENING and (data := both.client.outgoing()):
        cipher = both.server._cipher
        asked = [
            layer1.unpack(each, both.client.settings, cipher) for each in said(data) if isinstance(each, frames.Data)
        ]
        names = [each.method for each in asked if isinstance(each, RemoteMethodCall)]
        both.server.receive(data, 0.0)
        down = both.server.outgoing()
        if STEPS[step].method in names and both.client._step == step:
            replaced = True
            call_id = next(each.call_id for each in asked if isinstance(each, RemoteMethodCall))
            said_instead: layer2.Document = {
                "error": Error("Authentication", 100, call_id),
                "false": Response("Authentication", call_id, Value("boolean", False)),
                "empty": Response("Authentication", call_id),
                "wrong type": Response("Authentication", call_id, Value("int32", 1)),
                "garbage": Response("Authentication", call_id, Value("string", "garbage")),
            }[answer]
            pieces = layer1.pack(layer2.write(said_instead), 99999, both.client.settings, both.client._cipher)
            down = b"".join(map(frames.encode, pieces))
        both.client.receive(down, 0.0)
    assert replaced
    assert both.client.state is SessionState.CLOSED
    assert (both.client.close_reason or "").startswith("no trust: the peer refused")


def test_a_server_that_only_says_that_it_proved_itself_is_not_trusted() -> None:
    both = pair({**CLIENT, "authenticate": 3}, SERVER)
    while both.client.state is SessionState.OPENING and (data := both.client.outgoing()):
        both.server.receive(data, 0.0)
        if both.client._step == 4:
            (call_id,) = both.client._own
            yes = Response("Authentication", call_id, Value("boolean", True))
            pieces = layer1.pack(layer2.write(yes), 99999, both.client.settings, both.client._cipher)
            both.client.receive(b"".join(map(frames.encode, pieces)), 0.0)
            break
        both.client.receive(both.server.outgoing(), 0.0)
    assert both.client.state is SessionState.CLOSED


def test_trust_3_and_4_need_a_protected_connection_or_an_option() -> None:
    for protected, option, reached in ((False, False, False), (False, True, True), (True, False, True)):
        client = WolpertingerSession(
            Role.CLIENT,
            WolpertingerSettings.parse({**CLIENT, "authenticate": 3, "insecure_trust": option}),
            unique=1,
            entropy=entropy(1),
        )
        server = opened(Role.SERVER, protected=True, unique=2, **SERVER)
        client.protected = protected
        both = Pair(client, server)
        client.connected(0.0)
        both.settle()
        assert (client.state is SessionState.OPEN) == reached
        if not reached:
            assert "need TLS" in (client.close_reason or "")


# What fails, seen by the server


class Stranger:
    """Somebody who speaks the protocol by hand."""

    def __init__(self, server: WolpertingerSession) -> None:
        self.server = server
        self.cipher: Cipher | None = None
        self.number = 0

    def line(self, document: layer2.Document | bytes) -> bytes:
        self.number += 1
        xml = document if isinstance(document, bytes) else layer2.write(document)
        return b"".join(map(frames.encode, layer1.pack(xml, self.number, self.server.settings, self.cipher)))

    def hear(self) -> list[layer2.Document]:
        """What the server said; it is confirmed."""
        heard = [each for each in said(self.server.outgoing()) if isinstance(each, frames.Data)]
        for each in heard:
            self.server.receive(f"result:0;message_id:{each.message_id};\n".encode(), 0.0)
        return [layer1.unpack(each, self.server.settings, self.cipher) for each in heard]

    def ask(self, method: str, *parameters: Value, now: float = 0.0) -> layer2.Document:
        """Call a method of Authentication; the first document that comes back."""
        call_id = f"00000000-0000-0000-0000-{self.number:012d}"
        self.server.receive(self.line(RemoteMethodCall("Authentication", call_id, method, parameters)), now)
        return self.hear()[0]

    def climb(self, level: int) -> Stranger:
        if level >= 1:
            self.ask("EstablishConnection")
        if level >= 2:
            pair_ = KeyPair.draw(b"k" * 80)
            answer = self.ask("KeyExchange", text(pair_.public), text(base64.b64encode(bytes(16)).decode()))
            assert isinstance(answer, Response)
            assert answer.value is not None
            self.cipher = pair_.agree(str(answer.value.data), bytes(16))
        if level >= 3:
            self.ask("ClusterAuthVerify", text(prove(KEY, self.token("Cluster"))))
        if level >= 4:
            self.ask("UserAuthVerify", text("ADA"), text(prove("correct horse", self.token("User"))))
        assert self.server.trust == level
        return self

    def token(self, of: str) -> str:
        answer = self.ask(f"{of}AuthGetToken")
        assert isinstance(answer, Response)
        assert answer.value is not None
        return str(answer.value.data)


def text(value: str) -> Value:
    return Value("string", value)


def stranger(level: int = 0, *, protected: bool = True, **settings: object) -> Stranger:
    return Stranger(opened(Role.SERVER, protected=protected, **{**SERVER, **settings})).climb(level)


def parameters_of(method: str) -> tuple[Value, ...]:
    return tuple(Value("int32", 1) if kind == "int32" else text("x") for kind in METHODS[method].parameters)


NEEDS = {
    "EstablishConnection": 0, "KeyExchange": 1, "ClusterAuthGetToken": 2, "ClusterAuthVerify": 2,
    "ClusterAuthRequestVerification": 3, "UserAuthGetToken": 3, "UserAuthVerify": 3, "AwardTrustLevel": 0,
}  # fmt: skip


def test_all_methods_have_a_level() -> None:
    assert {name: method.needs for name, method in METHODS.items()} == NEEDS


@pytest.mark.parametrize(
    ("method", "level"), [(name, level) for name, needs in NEEDS.items() for level in range(needs)]
)
def test_every_method_needs_its_trust(method: str, level: int) -> None:
    answer = stranger(level).ask(method, *parameters_of(method))
    assert isinstance(answer, Error)
    assert answer.code == 201


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_checks_its_parameters(method: str) -> None:
    for wrong in ((*parameters_of(method), text("more")), (Value("boolean", True),)):
        answer = stranger(METHODS[method].needs).ask(method, *wrong)
        assert isinstance(answer, Error)
        assert answer.code == 305


def test_an_unknown_method_of_authentication_is_not_found() -> None:
    answer = stranger().ask("OpenSesame")
    assert isinstance(answer, Error)
    assert answer.code == 303


@pytest.mark.parametrize(
    ("public", "iv"),
    [
        ("", base64.b64encode(bytes(16)).decode()),
        ("AAAA", base64.b64encode(bytes(16)).decode()),
        (base64.b64encode(b"ECK5\x42\0\0\0" + bytes(132)).decode(), base64.b64encode(bytes(16)).decode()),
        (KeyPair.draw(b"k" * 80).public, ""),
        (KeyPair.draw(b"k" * 80).public, base64.b64encode(bytes(8)).decode()),
    ],
)
def test_a_key_exchange_with_what_is_no_key_is_refused_and_the_connection_stays_plain(public: str, iv: str) -> None:
    peer = stranger(1)
    answer = peer.ask("KeyExchange", text(public), text(iv))
    assert isinstance(answer, Error)
    assert answer.code == 305
    assert peer.server.trust == 1
    assert isinstance(peer.ask("EstablishConnection"), Response)


def test_the_key_is_exchanged_once() -> None:
    peer = stranger(2)
    answer = peer.ask("KeyExchange", text(KeyPair.draw(b"z" * 80).public), text(base64.b64encode(bytes(16)).decode()))
    assert isinstance(answer, Error)
    assert answer.code == 300
    assert isinstance(peer.ask("EstablishConnection"), Response)
    assert peer.server.trust == 2


def test_a_wrong_proof_is_answered_with_false_and_ends_the_connection() -> None:
    for level, method, of in ((2, "ClusterAuthVerify", "Cluster"), (3, "UserAuthVerify", "User")):
        peer = stranger(level)
        token = peer.token(of)
        proof = text(prove("wrong", token))
        answer = peer.ask(method, *((text("ada"), proof) if of == "User" else (proof,)))
        assert isinstance(answer, Response)
        assert answer.value == Value("boolean", False)
        assert peer.server.state is SessionState.CLOSED
        assert peer.server.trust == level


def test_a_proof_without_a_token_ends_the_connection() -> None:
    for level, method, parameters in (
        (2, "ClusterAuthVerify", (text("x"),)), (3, "UserAuthVerify", (text("ada"), text("x"))),
    ):  # fmt: skip
        peer = stranger(level)
        answer = peer.ask(method, *parameters)
        assert isinstance(answer, Error)
        assert answer.code == 305
        assert peer.server.state is SessionState.CLOSED


def test_a_token_is_used_once() -> None:
    peer = stranger(2)
    proof = text(prove(KEY, peer.token("Cluster")))
    assert peer.ask("ClusterAuthVerify", proof) == Response(
        "Authentication", f"00000000-0000-0000-0000-{peer.number - 1:012d}", Value("boolean", True)
    )
    again = peer.ask("ClusterAuthVerify", proof)
    assert isinstance(again, Error)
    assert peer.server.state is SessionState.CLOSED


def test_a_token_for_a_user_is_used_once() -> None:
    peer = stranger(3)
    proof = text(prove("correct horse", peer.token("User")))
    assert isinstance(peer.ask("UserAuthVerify", text("ada"), proof), Response)
    assert isinstance(peer.ask("UserAuthVerify", text("ada"), proof), Error)
    assert peer.server.state is SessionState.CLOSED


def test_names_of_users_are_compared_without_case() -> None:
    peer = stranger(3)
    answer = peer.ask("UserAuthVerify", text("ADA"), text(prove("correct horse", peer.token("User"))))
    assert isinstance(answer, Response)
    assert answer.value == Value("boolean", True)


def test_a_token_of_the_one_is_no_token_of_the_other() -> None:
    peer = stranger(3)
    token = peer.token("Cluster")
    answer = peer.ask("UserAuthVerify", text("ada"), text(prove("correct horse", token)))
    assert isinstance(answer, Error)


def test_nobody_proves_anything_to_a_peer_that_has_not_proven_itself() -> None:
    """Else a token of one session could be answered by another."""
    token = stranger(2).token("Cluster")
    answer = stranger(2).ask("ClusterAuthRequestVerification", text(token))
    assert isinstance(answer, Error)
    assert answer.code == 201


def test_a_request_for_verification_needs_a_token() -> None:
    answer = stranger(3).ask("ClusterAuthRequestVerification", text("short"))
    assert isinstance(answer, Error)
    assert answer.code == 305


@pytest.mark.parametrize("judged", [True, False])
def test_the_answer_to_a_request_for_verification_is_what_the_peer_judged(judged: bool) -> None:
    peer = stranger(3)
    token = base64.b64encode(bytes(32)).decode()
    proof = peer.ask("ClusterAuthRequestVerification", text(token))
    assert isinstance(proof, RemoteMethodCall)
    assert (proof.method, proof.parameters) == ("ClusterAuthVerify", (text(prove(KEY, token)),))
    peer.server.receive(peer.line(Response("Authentication", proof.call_id, Value("boolean", judged))), 0.0)
    (answer,) = peer.hear()
    assert isinstance(answer, Response)
    assert answer.value == Value("boolean", judged)


def test_the_higher_methods_are_refused_where_others_could_listen() -> None:
    for method in ("ClusterAuthGetToken", "ClusterAuthVerify"):
        answer = stranger(2, protected=False).ask(method, *parameters_of(method))
        assert isinstance(answer, Error)
        assert answer.code == 201
    assert isinstance(stranger(2, protected=False, insecure_trust=True).ask("ClusterAuthGetToken"), Response)


def test_the_trust_a_peer_awards_is_noted_and_nothing_is_answered() -> None:
    server = opened()
    server.receive(line(call("Authentication", "AwardTrustLevel", Value("int32", 2))), 0.0)
    assert server.outgoing() == b"result:0;message_id:1;\n"
    assert server.authentication.standing == 2
    assert server.trust == 0
    server.receive(line(call("Authentication", "AwardTrustLevel", Value("int32", 99)), 2), 0.0)
    assert server.authentication.standing == 2


def test_calls_below_the_required_trust_are_answered_with_201() -> None:
    peer = stranger(2, required_trust=3)
    for component, method in (("Test", "Echo"), ("Hub", "Subscribe"), ("Hub", "Event")):
        peer.number += 1
        call_id = f"10000000-0000-0000-0000-{peer.number:012d}"
        run = joined(peer.server.receive(peer.line(RemoteMethodCall(component, call_id, method, (text("a"),))), 0.0))
        assert not run.messages
        assert peer.hear() == [Error(component, 201, call_id)]
    peer.ask("ClusterAuthVerify", text(prove(KEY, peer.token("Cluster"))))
    assert messages_of(peer.server.receive(peer.line(RemoteMethodCall("Test", CALL_ID, "Echo")), 0.0))


def test_a_heartbeat_needs_no_trust() -> None:
    server = opened(required_trust=4)
    server.send(Message(Kind.REQUEST, "A.B"), 0.0)
    assert [
        each.kind for each in messages_of(server.receive(line(RemoteMethodCall("Core", CALL_ID, "Heartbeat")), 0.0))
    ] == [Kind.PROGRESS]


# Plain text


def test_plain_text_after_the_key_exchange_is_error_202_and_the_end() -> None:
    for level in (2, 3, 4):
        peer = stranger(level)
        data = line(call("Test", "Echo", HELLO), 500)
        run = joined(peer.server.receive(data + peer.line(call("Test", "Echo", HELLO)), 0.0))
        assert not run.messages
        assert documents(peer.server.outgoing()) == [Error("", 202)]
        assert peer.server.state is SessionState.CLOSED
        assert peer.server.violation is not None
        assert peer.server.violation.clause == "wolpertinger.encryption.required"
        assert peer.server.refused == data


def test_confirmations_are_plain_at_every_level() -> None:
    both = meet(4)
    both.server.receive(b"result:0;message_id:77;\n", 0.0)
    assert both.server.state is SessionState.OPEN


def test_plain_text_below_trust_2_is_fine_and_encryption_is_not_readable() -> None:
    server = opened()
    assert messages_of(server.receive(line(call("Test", "Echo", HELLO)), 0.0))
    (sealed,) = layer1.pack(b"x", 9, WolpertingerSettings(), Cipher(bytes(32), bytes(16)))
    run = joined(server.receive(frames.encode(sealed), 0.0))
    assert [each.clause for each in run.refused] == ["wolpertinger.encryption.unreadable"]


# Ciphertext that is wrong: the same answer after the same time


def bad_ciphertexts(peer: Stranger) -> dict[str, bytes]:
    """Lines with everything that can be wrong with an encrypted message."""
    cipher = peer.cipher
    assert cipher is not None
    good = layer2.write(call("Test", "Echo", HELLO))
    wrong_key = Cipher(bytes(32), cipher.iv)
    zipped = zlib.compress(good, wbits=31)

    def sealed(data: bytes) -> bytes:
        return base64.b64encode(cipher.seal(data))

    def unpadded(data: bytes) -> bytes:
        machine = cipher._machine().encryptor()
        return base64.b64encode(machine.update(data) + machine.finalize())

    bomb = zlib.compress(b"A" * 100_000, wbits=31)
    flipped = bytearray(cipher.seal(good))
    flipped[20] ^= 1
    cases = {
        "empty": b"message_id:%d;encryption:aes;",
        "not base64": b"message_id:%d;encryption:aes;A",
        "strange characters": b"message_id:%d;encryption:aes;%%",
        "no whole block": b"message_id:%d;encryption:aes;AAAA",
        "another key": b"message_id:%d;encryption:aes;" + base64.b64encode(wrong_key.seal(good)),
        "padding of zero": b"message_id:%d;encryption:aes;" + unpadded(bytes(32)),
        "padding too long": b"message_id:%d;encryption:aes;" + unpadded(b"\x11" * 32),
        "padding that differs": b"message_id:%d;encryption:aes;" + unpadded(b"\x01" * 15 + b"\x02"),
        "right padding, no xml": b"message_id:%d;encryption:aes;" + sealed(b"nonsense"),
        "right padding, no utf-8": b"message_id:%d;encryption:aes;" + sealed(b"\xff\xfe"),
        "right padding, invalid xml": b"message_id:%d;encryption:aes;" + sealed(b"<RemoteError/>"),
        "right padding, unknown message": b"message_id:%d;encryption:aes;" + sealed(b"<Other/>"),
        "right padding, doctype": b"message_id:%d;encryption:aes;" + sealed(b"<!DOCTYPE a><a/>"),
        "right padding, unknown type": b"message_id:%d;encryption:aes;" + sealed(good.replace(b'"string"', b'"odd"')),
        "right padding, wrong value": b"message_id:%d;encryption:aes;" + sealed(good.replace(b'"string"', b'"int32"')),
        "a bit flipped": b"message_id:%d;encryption:aes;" + base64.b64encode(bytes(flipped)),
        "no gzip": b"message_id:%d;encryption:aes;gzip:10;" + sealed(good),
        "gzip cut": b"message_id:%d;encryption:aes;gzip:20;" + sealed(zipped),
        "gzip too long": b"message_id:%d;encryption:aes;gzip:9999;" + sealed(zipped),
        "gzip no number": b"message_id:%d;encryption:aes;gzip:x;" + sealed(zipped),
        "right gzip, wrong padding": b"message_id:%%d;encryption:aes;gzip:%d;" % len(zipped)
        + unpadded(zipped + bytes(16 + -len(zipped) % 16)),
        "gzip and wrong padding": b"message_id:%d;encryption:aes;gzip:20;" + unpadded(bytes(32)),
        "too large": b"message_id:%d;encryption:aes;" + sealed(b"A" * 12_000),
        "too large when decompressed": b"message_id:%d;encryption:aes;gzip:%%s;" + sealed(bomb),
    }
    out = {}
    for number, (name, data) in enumerate(cases.items(), 1000):
        out[name] = data.replace(b"%d", str(number).encode(), 1).replace(b"%%s", str(len(bomb)).encode()) + b"\n"
    return out


CASES = list(bad_ciphertexts(stranger(2)))


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_wrong_with_a_ciphertext_gives_the_same_answer_after_the_same_time(case: str) -> None:
    peer = stranger(2, max_message=10_000)
    data = bad_ciphertexts(peer)[case]
    number = 1000 + CASES.index(case)
    run = joined(peer.server.receive(data, 50.0))
    assert not run.messages
    assert [(each.clause, each.detail) for each in run.refused] == [
        ("wolpertinger.encryption.unreadable", "an encrypted message cannot be read")
    ]
    # Nothing is said at once; the answer comes at the same moment whatever the steps before it took.
    assert peer.server.outgoing() == b""
    assert peer.server.deadline() == 50.25
    peer.server.expire(50.25)
    assert peer.server.outgoing() == f"result:4;message_id:{number};\n".encode()
    assert peer.server.state is SessionState.OPEN
    assert isinstance(peer.ask("EstablishConnection", now=51.0), Response)


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_wrong_with_a_ciphertext_the_same_steps_are_taken(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time we are busy tells nothing: one decryption, one decompression, one reading of XML for each of them."""
    peer = stranger(2, max_message=10_000)
    lines = bad_ciphertexts(peer)
    steps: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object) -> object:
            steps.append(name)
            if name == "parse":
                assert given[0], "something as long as the message is read, whatever is wrong with it"
            return real(*given)

        return step

    monkeypatch.setattr(Cipher, "open", counted("decrypt", Cipher.open))
    monkeypatch.setattr(layer1, "_inflate", counted("inflate", layer1._inflate))
    monkeypatch.setattr(layer1, "parse", counted("parse", layer1.parse))
    peer.server.receive(lines[case], 0.0)
    assert steps == ["decrypt", "inflate", "parse"]


def test_as_many_blocks_are_decrypted_as_there_are_whatever_is_wrong_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding, length and content wrong, base64 broken: all of one length, and all cost the same."""
    peer = stranger(2)
    cipher = peer.cipher
    assert cipher is not None
    sealed = cipher.seal(layer2.write(call("Test", "Echo", HELLO)))
    flipped_last = sealed[:-17] + bytes((sealed[-17] ^ 1,)) + sealed[-16:]
    content = sealed[:40] + bytes((sealed[40] ^ 1,)) + sealed[41:]
    wrong = {
        "padding": base64.b64encode(flipped_last),
        "content": base64.b64encode(content),
        "length": base64.b64encode(sealed[:-1]),
        "base64": base64.b64encode(sealed)[:-4] + b"=AAA",
        "characters": base64.b64encode(sealed)[:-4] + b"%%%%",
    }
    opened_sizes: dict[str, int] = {}
    read_sizes: dict[str, int] = {}
    real_open, real_parse = Cipher.open, layer1.parse
    for name, payload in wrong.items():

        def measured(self: Cipher, data: bytes, name: str = name) -> tuple[bytes, bool]:
            opened_sizes[name] = -(-len(data) // 16)
            return real_open(self, data)

        def reading(xml: bytes, message_id: int | None = None, name: str = name) -> layer2.Document:
            read_sizes[name] = -(-len(xml) // 16)
            return real_parse(xml, message_id)

        monkeypatch.setattr(Cipher, "open", measured)
        monkeypatch.setattr(layer1, "parse", reading)
        run = joined(peer.server.receive(b"message_id:77;encryption:aes;" + payload + b"\n", 0.0))
        assert [each.clause for each in run.refused] == ["wolpertinger.encryption.unreadable"]
    assert set(opened_sizes) == set(wrong)
    assert max(opened_sizes.values()) - min(opened_sizes.values()) <= 1
    assert max(read_sizes.values()) - min(read_sizes.values()) <= 1


def test_a_message_whose_ciphertext_was_wrong_can_be_sent_again() -> None:
    peer = stranger(2)
    good = peer.line(call("Test", "Echo", HELLO))
    bad = good.replace(b"encryption:aes;", b"encryption:aes;AAAA")
    assert not messages_of(peer.server.receive(bad, 0.0))
    assert messages_of(peer.server.receive(good, 0.0))


# Secrets


def test_secrets_are_not_in_what_is_printed() -> None:
    settings = WolpertingerSettings.parse({**CLIENT, **SERVER, "password": "hunter2", "users": {"a": "swordfish"}})
    for secret in (KEY, "hunter2", "swordfish"):
        assert secret not in repr(settings)
    assert "key" not in repr(Cipher(b"k" * 32, bytes(16)))


def test_secrets_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"cluster_key": KEY, "users": {"ada": "x"}}))
    loaded = WolpertingerSettings.parse({"secrets": str(path), "split": 100}).with_secrets()
    assert (loaded.cluster_key, loaded.users, loaded.split) == (KEY, {"ada": "x"}, 100)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        WolpertingerSettings.parse({"secrets": str(path)}).with_secrets()
    with pytest.raises(ConfigError, match="cannot be read"):
        WolpertingerSettings.parse({"secrets": str(tmp_path / "none")}).with_secrets()
    path.write_text('{"split": 5}')
    with pytest.raises(ConfigError, match="cluster_key"):
        WolpertingerSettings.parse({"secrets": str(path)}).with_secrets()


@pytest.mark.parametrize(
    "values",
    [{"authenticate": 5}, {"required_trust": -1}, {"max_message": 10**8}, {"split": 1}, {"resends": -1},
     {"delivery_timeout": -1.0}, {"max_open": 0}],
)  # fmt: skip
def test_settings_have_ranges(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        WolpertingerSettings.parse(values)


# What records keep


def test_a_proof_is_blanked_in_what_is_recorded_even_if_it_is_sent_again_or_in_pieces() -> None:
    proof = Value("string", "P" * 88)
    for split in (30_500, 100):
        peer = stranger(2, cluster_key=KEY)
        settings = WolpertingerSettings(split=split, gzip_from=0)
        lines = transmission.encode(call("Authentication", "ClusterAuthVerify", proof), 900, settings, peer.cipher)
        assert (len(lines) > 1) == (split == 100)
        data = b"".join([data_of(peer.server.receive(each, 0.0)) for each in lines])
        assert not any(each in data for each in lines)
        decoder = WOLPERTINGER.decoder(Direction.C2S, WolpertingerSettings())
        decoder.unlock((peer.server.secrets,))
        decoder.feed(data)
        (found,) = list(decoder)
        assert found.message.topic == "Authentication.ClusterAuthVerify"
        assert found.message.value() == ["*" * 88]
    # The connection stays open where the call was not even allowed; the same line again is blanked again.
    server = opened()
    (line_,) = transmission.encode(
        call("authentication", "userAuthVerify", HELLO, proof), 5, WolpertingerSettings(), None
    )
    first, again = joined(server.receive(line_, 0.0)), joined(server.receive(line_, 1.0))
    assert (first.data, again.count) == (again.data, 1)
    assert b"P" * 88 not in base64.b64decode(first.data.rpartition(b";")[2])


TOKEN = "wlt_" + "S" * 700
LOGIN = call("Hub", "Login", Value("string", TOKEN))


def readable(data: bytes, cipher: Cipher | None) -> bytes:
    """Everything that whoever has the keys can read in lines, cut off or not, in any order."""
    payloads = [each.rpartition(b";")[2] for each in data.splitlines()]
    seen = []
    for payload in (*payloads, b"".join(payloads)):
        for shift in range(4):
            if b"*" not in payload:
                cut = payload[shift : shift + (len(payload) - shift) // 4 * 4]
                seen.append(base64.b64decode(cut))
    if cipher is not None:
        seen += [cipher.open(each[: len(each) // 16 * 16])[0] for each in seen]
    return b"|".join(seen)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("order", ["from the first on", "without the first", "the last alone", "backwards"])
def test_a_login_that_never_becomes_complete_is_blanked_in_all_its_pieces(order: str, *, encrypted: bool) -> None:
    peer = stranger(2, cluster_key=KEY)
    server, cipher = (peer.server, peer.cipher) if encrypted else (opened(), None)
    lines = transmission.encode(LOGIN, 900, WolpertingerSettings(split=200, gzip_from=0), cipher)
    chosen = {
        "from the first on": lines[:-1], "without the first": lines[1:], "the last alone": lines[-1:],
        "backwards": lines[:0:-1],
    }[order]  # fmt: skip
    for each in chosen:
        assert not data_of(server.receive(each, 0.0))
    kept = server.unread()
    (refused,) = joined(server.expire(60.0)).refused
    for data in (kept, refused.data):
        assert len(data) == len(b"".join(chosen))
        assert b"SSS" not in readable(data, cipher)
        assert b"message_id:900;" in data


@pytest.mark.parametrize("gzip", [0, 1])
def test_a_login_that_is_cut_off_or_wrong_is_blanked_where_it_is_kept(gzip: int) -> None:
    (whole,) = transmission.encode(LOGIN, 900, WolpertingerSettings(gzip_from=gzip), None)
    server = opened()
    server.receive(whole[:-20], 0.0)
    assert b"*****" in server.unread()
    assert b"SSS" not in readable(server.unread(), None)
    server = opened()
    wrong = line(layer2.write(LOGIN).replace(b"</RemoteMethodCall>", b"<More/></RemoteMethodCall>"))
    (refused,) = joined(server.receive(wrong, 0.0)).refused
    assert (refused.clause, len(refused.data)) == ("wolpertinger.xml.invalid", len(wrong))
    assert b"SSS" not in readable(refused.data, None)
    again = joined(server.receive(wrong, 1.0))
    assert (again.data, [each.data for each in again.refused]) == (b"", [refused.data])
    # What holds no credentials stays as it came.
    wrong = line(layer2.write(call("Hub", "Publish", HELLO)).replace(b"</Remote", b"<More/></Remote"), 2)
    assert [each.data for each in joined(server.receive(wrong, 0.0)).refused] == [wrong]


def test_our_own_login_is_blanked_in_every_piece_however_many_they_are() -> None:
    client = opened(Role.CLIENT, split=64, gzip_from=0)
    body = json.dumps({"token": "S" * 5000}).encode()
    client.send(Message(Kind.REQUEST, "$hub/login", body, content_type="application/json"), 0.0)
    pieces = list(client.outgoing_frames())
    assert len(pieces) > 64
    for recorded in (b"".join(map(client.recordable, pieces)), client.recordable(b"".join(pieces))):
        decoder = WOLPERTINGER.decoder(Direction.C2S, WolpertingerSettings())
        decoder.feed(recorded)
        (found,) = list(decoder)
        assert found.message.value() == {"token": "*" * 5000}


def test_our_own_proof_is_blanked_in_what_is_recorded() -> None:
    both = meet(3)
    for session, who in ((both.client, "client"), (both.server, "server")):
        lines = [each for name, each in both.lines if name == who]
        changed = [(each, session.recordable(each)) for each in lines if session.recordable(each) != each]
        assert len(changed) == 1
        decoder = WOLPERTINGER.decoder(session.outbound, WolpertingerSettings())
        decoder.unlock((session.secrets,))
        decoder.feed(changed[0][1])
        assert next(decoder).message.value() == ["*" * 88]
