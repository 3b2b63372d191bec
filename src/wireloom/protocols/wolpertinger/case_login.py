"""How the conformance cases log in to a server that asks for it, and talk to it from then on.

The steps are those of `authentication`, taken one message at a time over a probe. From trust 2 on everything that is
said is encrypted.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from itertools import count
from typing import cast
from weakref import WeakKeyDictionary

from wireloom.model import Kind, Message
from wireloom.protocols.cases import UNASKED, CaseFailed, Cases, CaseSkipped, Level, Needs, Probe, Run
from wireloom.protocols.contract import Role
from wireloom.protocols.wolpertinger import authentication, layer1, messages
from wireloom.protocols.wolpertinger.authentication import COMPONENT, STEPS, Authentication
from wireloom.protocols.wolpertinger.frames import Confirmation, Data, encode
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Document, RemoteMethodCall, Response, write
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.values import Value

_IDS = count(1)
_CIPHERS: WeakKeyDictionary[Probe, Cipher] = WeakKeyDictionary()


def next_id() -> int:
    """A message_id that no case has used."""
    return next(_IDS)


def pieces_of(probe: Probe, xml: bytes, message_id: int, *, split: int = 30_500, compress: bool = False) -> list[Data]:
    """A document as it goes to this peer: encrypted, if that was agreed."""
    return layer1.pack(xml, message_id, WolpertingerSettings(split=split), _CIPHERS.get(probe), compress=compress)


def metadata(probe: Probe) -> bytes:
    """What stands in a line beside the message_id, for this peer."""
    return b"encryption:aes;" if probe in _CIPHERS else b""


class LoggedIn(Cases):
    """Cases that begin when the login is done, where the settings ask for one."""

    def lives(self, run: Run) -> Run:
        """A server is looked at after a login, too."""

        async def after_login(probe: Probe) -> None:
            await log_in(probe)
            await run(probe)

        super().lives(after_login)
        return run

    def both(self, name: str, clause: str, level: Level = Level.MUST, *, needs: Needs = ()) -> Callable[[Run], Run]:
        """A case for servers, logged in, and the same for clients, who come as they are."""
        add = super().both(name, clause, level, needs=needs)

        def wrapped(run: Run) -> Run:
            async def after_login(probe: Probe) -> None:
                await log_in(probe)
                await run(probe)

            add(after_login)
            return run

        return wrapped


async def log_in(probe: Probe) -> None:
    """Climb to the trust that the settings name; a server alone can be asked for it."""
    settings = cast(WolpertingerSettings, probe.settings).with_secrets()
    if not settings.authenticate:
        return
    if probe.role is Role.CLIENT:
        raise CaseSkipped("a client logs in when it wants to; 'authenticate' is for servers")
    own = Authentication(settings, os.urandom)
    for step in STEPS:
        if step.level > settings.authenticate:
            return
        accepted = step.accept(
            own, await _ask(probe, own, RemoteMethodCall(COMPONENT, "", step.method, step.parameters(own)))
        )
        if not accepted:
            raise CaseFailed(f"the peer refused {COMPONENT}.{step.method}: is 'authenticate' more than it offers?")
        if isinstance(accepted, Cipher):
            _CIPHERS[probe] = accepted
            probe.unlock({"aes_key": accepted.key.hex(), "aes_iv": accepted.iv.hex()})


async def _say(probe: Probe, document: Document) -> None:
    await probe.send(b"".join(map(encode, pieces_of(probe, write(document), next_id()))))


async def _ask(probe: Probe, own: Authentication, call: RemoteMethodCall) -> Value | None:
    """The value of the answer to a call; None for an error. Meanwhile the peer may ask for a proof."""
    call_id = str(uuid.uuid4())
    await _say(probe, RemoteMethodCall(call.component, call_id, call.method, call.parameters))
    while True:
        found = await probe.expect(Kind.RESPONSE, Kind.ERROR, Kind.REQUEST, unasked=(*UNASKED, Kind.ACK, Kind.PROGRESS))
        await probe.send(encode(Confirmation(int(found.attributes["message_id"]), 0)))
        if found.kind is Kind.REQUEST:
            await _prove(probe, own, found)
        elif (found.correlation_id or "").lower() == call_id:
            return messages.response_value(found) if found.kind is Kind.RESPONSE else None


async def _prove(probe: Probe, own: Authentication, asked: Message) -> None:
    """Judge the proof that the peer gives; other calls of its are left alone."""
    component, _, method = (asked.topic or "").rpartition(".")
    if component != COMPONENT or asked.id is None:
        return
    outcome = own.answer(RemoteMethodCall(component, asked.id, method, messages.parameters(asked)), protected=True)
    await _say(probe, Response(component, asked.id, outcome.value or authentication.NO))
