"""A new configuration for a running hub, and its end: nobody is dropped without a word."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import config, get, hub_on, url_of
from wireloom.hub.hub import Hub
from wireloom.hub.reload import reload_from

BASE = '[[listener]]\nurl = "yamp://127.0.0.1:0"\n[http]\nurl = "http://127.0.0.1:0"\n'


def rules(publish: str) -> str:
    return f'[[access.rule]]\nwho = ["anyone"]\npublish = ["{publish}"]\nsubscribe = ["{publish}"]\n'


def reload(hub: Hub, folder: Path, text: str) -> bool:
    return reload_from(hub, lambda: config(folder, text))


async def test_new_rules_hold_for_connections_that_are_open(tmp_path: Path) -> None:
    async with hub_on(tmp_path, BASE + rules("old/#")) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as peer, peer.subscribe("old/#"):
            await peer.publish("old/a", b"1", ack=True)
            assert reload(hub, tmp_path, BASE + rules("new/#"))
            await peer.publish("new/a", b"1", ack=True)
            with pytest.raises(wireloom.RequestFailed, match="403"):
                await peer.publish("old/a", b"1", ack=True)
            assert len(hub.router.subscriptions) == 0, "a subscription that is no longer allowed has ended"
            assert peer.reconnects == 0
        assert hub.metrics.reloads.value("done") == 1


async def test_a_bad_file_changes_nothing_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hub_on(tmp_path, BASE + rules("old/#")) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            assert not reload(hub, tmp_path, BASE + rules("new/#/a"))
            await peer.publish("old/a", b"1", ack=True)
    assert hub.metrics.reloads.value("failed") == 1
    assert "hub.toml:7: access.rule: publish: pattern 'new/#/a': '#' must be the last level" in caplog.text


async def test_new_limits_hold_from_now_on(tmp_path: Path) -> None:
    async with hub_on(tmp_path, BASE) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        assert reload(hub, tmp_path, BASE + "[limits]\nmax_connections = 1\npending_bytes = 1000\n")
        await peer.publish("a", b"1", ack=True)
        with pytest.raises(wireloom.WireloomError):
            await wireloom.connect(url_of(hub, "yamp"), reconnect=False, timeout=10)
        assert hub.metrics.turned_away.value("connections") == 1
        assert hub.commit.high_water == 1000


async def test_what_needs_a_restart_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hub_on(tmp_path, BASE) as hub:
        changed = BASE.replace('yamp://127.0.0.1:0"', 'yamp://127.0.0.1:0"\nsettings = { max_body = 5 }')
        assert reload(hub, tmp_path, changed + "[journal]\nsync = false\n")
    assert "changes of [journal], yamp://127.0.0.1:0 wait for a restart" in caplog.text


async def test_everything_that_is_read_at_the_start_only_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_on(tmp_path, BASE) as hub:
        text = BASE.replace("http://127.0.0.1:0", "off") + '[[listener]]\nurl = "hsp://127.0.0.1:0"\n[tracing]\n'
        assert reload_from(hub, lambda: config(tmp_path / "elsewhere", text))
    assert "changes of [data], [http], [tracing], hsp://127.0.0.1:0 wait for a restart" in caplog.text


async def test_limits_that_open_doors_keep_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hub_on(tmp_path, BASE) as hub:
        doors = "handshake_seconds = 3\nmax_connections = 7\nbusy_poll_seconds = 0.0001\n"
        assert reload(hub, tmp_path, f"{BASE}[limits]\n{doors}idle_seconds = 60\n")
        assert hub.config.limits.handshake_seconds == 3, "that of the protocols is in force"
    kept = "handshake_seconds for TLS and WebSocket, max_connections for sources of one datagram listener"
    assert f"changes of busy_poll_seconds on streams, {kept} wait for a restart" in caplog.text


async def test_what_is_in_force_at_once_is_not_said_to_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    webhook = '[[webhook]]\nname = "new"\nurl = "http://127.0.0.1:9/"\ntopic = "alerts/#"\n'
    async with hub_on(tmp_path, BASE) as hub:
        assert reload(hub, tmp_path, BASE + webhook + "[limits]\nidle_seconds = 60\n")
        assert [each.name for each in hub.config.webhooks] == ["new"]
    assert "wait for a restart" not in caplog.text


async def test_certificates_of_the_pages_are_renewed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Authority(tmp_path, "Old Authority").issue("hub")
    tls = f'tls = {{ certificate = "{tmp_path}/hub.pem", key = "{tmp_path}/hub.key" }}\n'
    text = '[[listener]]\nurl = "hsp://127.0.0.1:0"\n[http]\nurl = "https://127.0.0.1:0"\n' + tls
    async with hub_on(tmp_path, text) as hub:
        port = int(hub.urls["http"].rpartition(":")[2])

        async def status(authority: Authority) -> bytes:
            context = wireloom.TLS(ca=authority.path).client_context()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer

        new = Authority(tmp_path, "New Authority")
        with pytest.raises(ssl.SSLError):
            await status(new)
        new.issue("hub")
        assert reload(hub, tmp_path, text)
        assert b" 200 " in await status(new)
    assert "wait for a restart" not in caplog.text


async def test_a_new_size_of_messages_holds_for_connections_that_come_then(tmp_path: Path) -> None:
    async with hub_on(tmp_path, BASE) as hub, wireloom.connect(url_of(hub, "yamp")) as before:
        assert reload(hub, tmp_path, BASE + "[limits]\nmessage_bytes = 2000\n")
        await before.publish("a", bytes(3000), ack=True)
        async with wireloom.connect(url_of(hub, "yamp"), reconnect=False) as after:
            await after.publish("a", bytes(1500), ack=True)
            with pytest.raises(wireloom.WireloomError):
                await after.publish("a", bytes(3000), ack=True)
        assert hub.metrics.refused.value("yamp", "yamp.body.too-large") == 1


@pytest.mark.parametrize("scheme", ["hsps", "yamp+wss", "mesh+quic"])
async def test_certificates_are_renewed_for_new_connections(scheme: str, tmp_path: Path) -> None:
    """The file stays, its content changes, as with certificates that are renewed by a robot."""

    def issue(name: str) -> Authority:
        authority = Authority(tmp_path, name)
        authority.issue("hub")
        return authority

    old = issue("Old Authority")
    text = f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\n[http]\nurl = "off"\n'.replace(
        "[http]", f'tls = {{ certificate = "{tmp_path}/hub.pem", key = "{tmp_path}/hub.key" }}\n[http]'
    )
    if scheme == "mesh+quic":
        text = text.replace("tls =", 'settings = { require = "any" }\ntls =')
    async with hub_on(tmp_path, text) as hub:
        url = url_of(hub, scheme)
        async with wireloom.connect(url, tls=wireloom.TLS(ca=old.path)) as before:
            new = issue("New Authority")
            assert reload(hub, tmp_path, text)
            async with wireloom.connect(url, tls=wireloom.TLS(ca=new.path), reconnect=False) as after:
                await after.publish("a", b"1")
                with pytest.raises(wireloom.WireloomError):
                    await wireloom.connect(url, tls=wireloom.TLS(ca=old.path), reconnect=False, timeout=10)
                await before.publish("a", b"2")
                assert len(hub.connections) == 2
                assert before.reconnects == 0


async def test_a_certificate_that_does_not_load_leaves_everything_as_it_was(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub")
    text = (
        f'[[listener]]\nurl = "hsps://127.0.0.1:0"\ntls = {{ certificate = "{certificate}", key = "{key}" }}\n'
        '[http]\nurl = "off"\n'
    )
    async with hub_on(tmp_path, text) as hub:
        certificate.write_text("nonsense")
        assert not reload(hub, tmp_path, text + rules("a"))
        assert not hub.config.access.rules
        async with wireloom.connect(url_of(hub, "hsps"), tls=wireloom.TLS(ca=authority.path)) as peer:
            await peer.publish("a", b"1", ack=True)


async def test_sighup_and_sigterm_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(BASE + rules("old/#"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wireloom", "hub", "--config", str(file), "--data", str(tmp_path)),
        *("--log-format", "json", "--verbose"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    urls = []
    async with asyncio.timeout(60):
        while (line := (await process.stdout.readline()).decode().strip()) != "ready":
            urls += [line.rpartition(" ")[2]] if line.startswith("listening") else []
    yamp, http = urls
    async with wireloom.connect(yamp, reconnect=False) as peer:
        await peer.publish("old/a", b"1", ack=True)
        file.write_text(BASE + rules("new/#"))
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(20):
            while 'wireloom_reloads_total{outcome="done"} 1' not in (await get(http + "/metrics"))[1]:
                await asyncio.sleep(0.05)
        await peer.publish("new/a", b"1", ack=True)
        assert (await get(http + "/readyz"))[0] == 200
        process.send_signal(signal.SIGTERM)
        with pytest.raises(wireloom.PeerClosed):
            async with asyncio.timeout(20):
                while True:
                    await peer.publish("new/a", b"1", ack=True)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert all(
        {"time", "level", "event", "message", "connection", "protocol", "principal"} <= line.keys() for line in lines
    )
    events = [line["event"] for line in lines]
    for event in ("listener.open", "connection.opened", "reload.done", "hub.draining", "connection.closed"):
        assert event in events
    opened = next(line for line in lines if line["event"] == "connection.opened")
    assert (opened["protocol"], opened["principal"], len(opened["connection"])) == ("yamp", "anonymous", 16)
