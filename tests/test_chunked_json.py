"""Large bodies are worked on in pieces: the result is the same, and other threads get their turn meanwhile."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wireloom import chunked_json
from wireloom.formats.body_formats import Msgpack, body_format
from wireloom.model import BodyError, Kind, Message, NotSupported, ProtocolViolation, encode_value

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8), max_leaves=40
)
LARGE = {"rows": [{"n": n, "text": "x" * 20, "list": [n, 2.5, None]} for n in range(40_000)], "end": True}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    monkeypatch.setattr(chunked_json, "MANY", 6)
    monkeypatch.setattr(chunked_json, "LARGE", 8)
    monkeypatch.setattr("wireloom.formats.body_formats.LARGE", 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
def test_json_in_pieces_is_the_same_json(tiny: None, value: object) -> None:
    whole = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert encode_value([value])[0].decode() == f"[{whole}]"
    assert body_format("json").dumps(value).decode() == whole
    assert chunked_json.read_json(whole) == value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
def test_msgpack_and_cbor_in_pieces_are_the_same(tiny: None, value: object) -> None:
    assert body_format("msgpack").dumps(value) == msgpack.packb(value)
    for name in ("msgpack", "cbor"):
        form = body_format(name)
        assert form.loads(form.dumps(value)) == value


def test_keys_that_are_no_texts_become_the_same_texts(tiny: None) -> None:
    value = {1: list(range(20)), None: {True: "x" * 30, 2.5: [1]}, "1": 0}
    assert encode_value(value)[0].decode() == json.dumps(value, separators=(",", ":"))


def test_no_piece_that_is_written_is_large() -> None:
    written: list[object] = []

    def encode(value: object) -> str:
        written.append(value)
        return json.dumps(value, separators=(",", ":"))

    value = {**LARGE, "text": "x" * 1_000_000, "deep": [[[[list(range(10_000))]]]]}
    assert json.loads(chunked_json.write_json(value, encode)) == value
    assert max(map(chunked_json.weight, written)) <= chunked_json.MANY + 1
    assert len(written) > 50

    class Packer(msgpack.Packer):  # type: ignore[misc]
        def pack(self, value: object) -> bytes:
            packed.append(value)
            return bytes(super().pack(value))

    packed: list[object] = []
    assert msgpack.unpackb(b"".join(Msgpack()._pieces(LARGE, Packer()))) == LARGE
    assert max(map(chunked_json.weight, packed)) <= chunked_json.MANY


def circles() -> Iterator[object]:
    endless: list[object] = list(range(5000))
    endless.append(endless)
    yield endless
    names: dict[str, object] = {str(n): n for n in range(5000)}
    names["self"] = [names]
    yield names


@pytest.mark.parametrize("value", list(circles()), ids=["list", "dict"])
def test_a_large_value_inside_itself_is_refused(value: object) -> None:
    with pytest.raises(NotSupported, match="ircular"):
        encode_value(value)
    for name in ("json", "msgpack"):
        with pytest.raises(BodyError):
            body_format(name).dumps(value)


def test_what_json_cannot_say_is_refused_also_deep_inside_a_large_value() -> None:
    with pytest.raises(BodyError):
        body_format("json").dumps([*range(5000), float("nan")])
    with pytest.raises(NotSupported):
        encode_value([*range(5000), {1, object()}])


@pytest.mark.parametrize("name", ["json", "msgpack", "cbor"])
def test_large_bodies_that_are_wrong_are_refused(name: str) -> None:
    form = body_format(name)
    data = form.dumps(LARGE)
    for wrong in (data[:-1], data + data[:3], data[: len(data) // 2]):
        with pytest.raises(ProtocolViolation, match=r"yamp\.body\.malformed"):
            form.loads(wrong)


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads that want to run are let in at the next opportunity."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def turns(work: Callable[[], object]) -> int:
    """How often another thread ran while this one worked."""
    count, over, ready = 0, False, threading.Event()

    def other() -> None:
        nonlocal count
        ready.set()
        while not over:
            count += 1
            waiting.wait(0.000_01)

    waiting = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    before = count
    work()
    during = count - before
    over = True
    thread.join()
    return during


def work_on(what: str) -> Callable[[], object]:
    name, _, does = what.partition(" ")
    if name == "emp":
        message = Message(Kind.EVENT, body=encode_value(LARGE)[0], content_type="application/json")
        return message.value if does == "reads" else lambda: encode_value(LARGE)
    form = body_format(name)
    data = form.dumps(LARGE)
    return (lambda: form.loads(data)) if does == "reads" else (lambda: form.dumps(LARGE))


@pytest.mark.parametrize("does", ["reads", "writes"])
@pytest.mark.parametrize("name", ["emp", "json", "msgpack", "cbor"])
def test_other_threads_run_while_a_large_body_is_worked_on(name: str, does: str, eager: None) -> None:
    work = work_on(f"{name} {does}")
    # A call into C that never gives way lets the other thread run before and after at most.
    assert any(turns(work) > 5 for _ in range(20))
