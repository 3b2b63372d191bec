"""Random and mutated input for every layer of wolpertinger, with one stated property.

    python -m tests.protocols.wolpertinger.fuzz COUNT [--seed N] [--memory MIB]

Changing bytes of a line mostly breaks its base64 and goes no further. Here the XML is changed before it is compressed,
what is compressed before it is encrypted, what is encrypted before it is encoded, and the pieces before they are sent.
For every input: only refusals with a clause come out of the decoder, the columns agree with it however the input is
cut, no exception leaves a session with or without trust, and whatever is wrong with a ciphertext is refused in the same
words. Memory stays below a limit. The inputs follow from the seed alone.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import resource
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.agreement import assert_columns_agree, rows_of_decoder
from tests.protocols.reading import joined
from tests.protocols.wolpertinger.talk import CALL_ID, HELLO, call, opened
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import CUT, Role
from wireloom.protocols.wolpertinger import WOLPERTINGER, frames, layer1, layer2
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Error, Response
from wireloom.protocols.wolpertinger.values import Value

KEY, IV = bytes(range(32)), bytes(range(16))
CIPHER = Cipher(KEY, IV)
KNOWN = {"aes_key": KEY.hex(), "aes_iv": IV.hex(), "max_message": 20_000}
ASKING = Message(Kind.REQUEST, "Test.Echo", b'["x"]', content_type="application/json")
VECTORS = Path(__file__).parents[2] / "vectors" / "wolpertinger-csharp.json"
SECRET = "wlt_" + "s3cret" * 20
WORDS = (
    b"<!DOCTYPE a>", b"<!--x-->", b"<![CDATA[x]]>", b"&amp;", b"&#65;", b"&x;", b"<object type='int32'>7</object>",
    b' type="list"', b' xmlns=""', b"\xff", b"\0", b"]]>", b"<?a b?>", b"True", b"INF", b"2013-03-09T21:01:47Z", b"<a/>",
    b' xsi:schemaLocation="a b"', b"RemoteError", b"ResponseValue", b"Hub", b"Subscribe", b"Event", b"$hub/publish/x",
)  # fmt: skip


def documents() -> list[bytes]:
    recorded = [bytes.fromhex(entry["hex"]) for entry in json.loads(VECTORS.read_text()) if entry.get("hex")]
    found = [base64.b64decode(each.rpartition(b";")[2]) for each in recorded if not each.startswith(b"result")]
    texts = [Value("string", each) for each in ("rooms/a", "text/plain", "hi")]
    nested = Value("list", (Value("list", (HELLO, Value("double", 1.5))), Value("clientInfo", "<a>b</a>")))
    made = (
        call("Hub", "Publish", *texts), call("Hub", "Event", *texts), call("Hub", "Subscribe", texts[0]),
        call("Core", "Heartbeat"), call("Authentication", "EstablishConnection"), call("T", "E", nested),
        call("Authentication", "KeyExchange", texts[0], texts[1]), call("Hub", "Login", Value("string", SECRET)),
        call("Authentication", "UserAuthVerify", texts[0], Value("string", SECRET)), Response("T", CALL_ID, nested), Error("", 304),
    )  # fmt: skip
    return found + [layer2.write(each) for each in made]


def mutate(draw: random.Random, data: bytes) -> bytes:
    """One change."""
    where = draw.randrange(len(data) + 1)
    match draw.randrange(6):
        case 0 if data:
            at = where % len(data)
            return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:where] + draw.choice(WORDS) + data[where:]
        case 2:
            return data[:where] + data[where + draw.randint(1, 12) :]
        case 3:
            return data[:where]
        case 4:
            return data[:where] + data[where : where + draw.randint(1, 60)] + data[where:]
        case _:
            return data[:where] + draw.randbytes(draw.randint(1, 6)) + data[where:]


def some(draw: random.Random, data: bytes, likely: float) -> bytes:
    return mutate(draw, data) if draw.random() < likely else data


def lines(draw: random.Random, pool: list[bytes]) -> list[bytes]:
    """One message as lines, changed at any of its layers or at none."""
    xml = draw.choice(pool)
    for _ in range(draw.choice((0, 0, 1, 1, 2, 4))):
        xml = mutate(draw, xml)
    length: int | None = None
    if draw.random() < 0.3:
        machine = zlib.compressobj(1, zlib.DEFLATED, 31)
        xml = some(draw, machine.compress(xml * draw.choice((1, 1, 1, 400))) + machine.flush(), 0.2)
        length = len(xml) + draw.choice((0, 0, 0, 0, 1, -1, 100))
    encryption = None
    if draw.random() < 0.3:
        xml, encryption = some(draw, CIPHER.seal(xml), 0.3), "aes"
    whole = frames.Data(draw.randrange(30), base64.b64encode(xml), max(length, 0) if length else length, encryption)
    pieces = layer1.split(whole, draw.choice((100, 1000, 10**6)), 10**6)
    if len(pieces) > 1:
        if draw.random() < 0.2:
            pieces[0] = pieces[0]._replace(fragment_count=draw.randrange(1, 6000), fragment_index=0)
        if draw.random() < 0.2:
            pieces.pop(draw.randrange(len(pieces)))
        draw.shuffle(pieces)
    return [some(draw, frames.encode(piece), 0.05) for piece in pieces]


def inputs(count: int, seed: int) -> Iterator[bytes]:
    draw = random.Random(seed)
    pool = documents()
    for _ in range(count):
        found = [line for _ in range(draw.randint(1, 3)) for line in lines(draw, pool)]
        if draw.random() < 0.3:
            found.append(frames.encode(frames.Confirmation(draw.randrange(10), draw.randrange(7))))
        if draw.random() < 0.3:
            draw.shuffle(found)
        yield b"".join(found)


def talk(data: bytes, draw: random.Random) -> None:
    """Give the input to sessions of both roles, with and without a key; every byte is taken or refused."""
    for role in Role:
        session = opened(role, max_message=20_000)
        trusted = draw.random() < 0.5
        if trusted:
            session._cipher = CIPHER
            session.authentication.trust = 2
        if draw.random() < 0.5:
            session.enable_work()
        for _ in range(3):
            session.send(ASKING, 0.0)
        cut = draw.randrange(len(data) + 1)
        runs = [joined(session.receive(piece, 1.0)) for piece in (data[:cut], data[cut:])]
        while (work := session.work()) is not None:
            runs.append(joined(session.worked(work(), 1.0)))
        runs += [joined(session.expire(at)) for at in (2.0, 30.0, 100.0)]
        session.outgoing()
        session.end_of_input(101.0)
        taken = sum(len(run.data) + sum(len(each.data) for each in run.refused) for run in runs) + len(session.refused)
        # A call with credentials stands in the record with stars, and in our own words.
        assert taken <= len(data) or session._blanked
        failed = session.counters.get("wolpertinger.delivery.failed", 0)
        if session.violation is None and not failed and not session._blanked:
            assert taken == data.rfind(b"\n") + 1
        for run in runs:
            for each in run.refused:
                assert each.clause in WOLPERTINGER.clauses
                if b";encryption:aes;" in each.data and "fragment" not in each.clause:
                    assert each.clause in (
                        "wolpertinger.encryption.unreadable", "wolpertinger.metadata.form", "wolpertinger.metadata.twice",
                        "wolpertinger.message-id.missing", "wolpertinger.message-id.range", "wolpertinger.result.form",
                        "wolpertinger.message.too-large", "wolpertinger.message-id.again",
                    ), each  # fmt: skip


def fuzz(count: int, seed: int = 0, memory_mib: int = 2048, *, progress: bool = False) -> Counter[str]:
    """Try `count` inputs; raises AssertionError, with the input in its notes, at the first that breaks the property."""
    draw = random.Random(seed + 1)
    clauses: Counter[str] = Counter()
    begun = time.monotonic()
    for number, data in enumerate(inputs(count, seed), 1):
        values: dict[str, object] = dict(KNOWN) if draw.random() < 0.5 else {"max_message": 20_000}
        try:
            assert_columns_agree(WOLPERTINGER, data, values=values)
            rows, rejects, _ = rows_of_decoder(WOLPERTINGER, data, Direction.C2S, {}, values)
            for reject in rejects:
                assert reject[2] in WOLPERTINGER.clauses or reject[2] == CUT
                clauses[str(reject[2])] += 1
            clauses["messages"] += len(rows)
            talk(data, draw)
        except BaseException as problem:
            problem.add_note(f"wolpertinger, seed {seed}, input {number}: {data.hex()}")
            raise
        if number % 1000 == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            assert peak < memory_mib, f"{peak} MiB in use"
            if progress and number % 10_000 == 0:
                print(f"{number:>9} inputs, {time.monotonic() - begun:.0f} s, {peak} MiB", file=sys.stderr)
    return clauses


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocols.wolpertinger.fuzz", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB")
    given = parser.parse_args()
    for clause, times in sorted(fuzz(given.count, given.seed, given.memory, progress=True).items()):
        print(f"{times:>9}  {clause}")


if __name__ == "__main__":
    main()
