"""Listeners with TLS: certificates of the hub, and of its peers."""

from __future__ import annotations

from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import hub_on, records, url_of
from wireloom.model import ConfigError, WireloomError


@pytest.mark.parametrize("scheme", ["hsps", "emps", "yamps", "yamp+wss", "wolpertinger+tls"])
async def test_peers_publish_over_tls_and_are_known_by_their_certificate(tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub")
    mine = authority.issue("meter-7")
    text = (
        f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n'
        f'tls = {{ certificate = "{certificate}", key = "{key}", ca = "{authority.path}" }}\n[http]\nurl = "off"\n'
    )
    async with hub_on(tmp_path, text) as hub:
        known = wireloom.TLS(*mine, ca=authority.path)
        async with wireloom.connect(url_of(hub, scheme), tls=known) as peer:
            await peer.publish("x", b"1", ack=True)
        with pytest.raises(WireloomError):
            stranger = wireloom.TLS(ca=authority.path)
            async with wireloom.connect(url_of(hub, scheme), tls=stranger, reconnect=False, timeout=5) as peer:
                await peer.publish("x", b"1", ack=True, timeout=5)
    principals = [block.details["principal"] for block in records(tmp_path, "opened")]
    assert principals == ["certificate:meter-7"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("", "hsps needs certificates: tls = { certificate"),
        ('tls = { certificate = "none.pem", key = "none.key" }', "none.pem"),
        ('tls = { cert = "a" }', "tls: unknown key 'cert'; known: certificate, key"),
    ],
)
async def test_what_is_wrong_with_certificates_is_said_before_the_hub_starts(
    tmp_path: Path, extra: str, message: str
) -> None:
    text = f'[[listener]]\nurl = "hsps://127.0.0.1:0"\n{extra}\n'
    with pytest.raises(ConfigError, match=r"hub.toml:\d: listener") as error:
        async with hub_on(tmp_path, text):
            pass
    assert message in str(error.value)
