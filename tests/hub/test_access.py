"""Who may do what: identities, rules, tokens, refusals, in every protocol over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import ALL, ack, data, data_ack, eventually, get, hub_on, journaled, records, stream_to, url_of
from wireloom.hub.access import Tokens
from wireloom.model import Kind

TOKEN = "wlt_correct-horse-battery-staple"
RULES = """
[[access.rule]]
who = ["token:dashboard"]
publish = ["sensors/#"]
subscribe = ["sensors/#", "$hub/undeliverable"]
request = ["math/+"]
provide = ["math/add"]
"""
REQUESTING = ["hsp", "emp", "yamp", "yamp+ws", "wolpertinger"]


def tokens(folder: Path) -> str:
    path = folder / "tokens"
    path.write_text(f"# for tests\ndashboard: sha256:{Tokens.digest(TOKEN).hex()}\n")
    return f'[access]\ntokens = "{path}"\n'


async def test_without_rules_a_listener_on_loopback_allows_everything(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        await peer.publish("anything", b"1", ack=True)
        assert next(iter(hub.connections.values())).principal == "anonymous"


async def test_without_rules_a_listener_that_others_reach_refuses_everything(tmp_path: Path) -> None:
    text = '[[listener]]\nurl = "yamp://0.0.0.0:0"\n[http]\nurl = "off"\n'
    async with hub_on(tmp_path, text) as hub:
        url = url_of(hub, "yamp").replace("0.0.0.0", "127.0.0.1")
        async with wireloom.connect(url) as peer:
            with pytest.raises(wireloom.RequestFailed, match=r"403.*anonymous may not publish 'anything'"):
                await peer.publish("anything", b"1", ack=True)
        assert hub.metrics.denied.value("yamp", "publish") == 1


@pytest.mark.parametrize("scheme", REQUESTING)
async def test_a_token_gives_rights_and_nothing_more(scheme: str, tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        async with wireloom.connect(url_of(hub, scheme), token=TOKEN) as peer:
            await peer.publish("sensors/kitchen", b"1", ack=True)
            connection = next(iter(hub.connections.values()))
            assert connection.principal == "token:dashboard"
            code = "201" if scheme == "wolpertinger" else "403"
            for refused in (
                peer.publish("doors/front", b"1", ack=True),
                peer.request("other/thing"),
                peer.subscribe("doors/#").__aenter__(),
            ):
                with pytest.raises(wireloom.RequestFailed, match=code):
                    await refused
            async with peer.subscribe("sensors/+") as readings:
                await peer.publish("sensors/cellar", b"2")
                assert (await anext(aiter(readings))).topic == "sensors/cellar"
        name = connection.name
        assert hub.metrics.logins.value(name, "accepted") == 1
        denied = [hub.metrics.denied.value(name, right) for right in ("publish", "request", "subscribe")]
        assert denied == ([2, 0, 1] if scheme == "hsp" else [1, 1, 1]), "an hsp request nobody provides is a publish"
    assert [block.details for block in records(tmp_path, "principal")] == [{"principal": "token:dashboard"}]


@pytest.mark.parametrize("scheme", REQUESTING)
async def test_a_wrong_token_is_refused_and_counted(scheme: str, tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        with pytest.raises(wireloom.HandshakeFailed, match="refused the token"):
            await wireloom.connect(url_of(hub, scheme), token="wlt_guess", reconnect=False)
        assert hub.metrics.logins.value(scheme.partition("+")[0], "refused") == 1


@pytest.mark.parametrize("scheme", REQUESTING)
async def test_the_journal_never_holds_a_token(scheme: str, tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        async with wireloom.connect(url_of(hub, scheme), token=TOKEN) as peer:
            await peer.publish("sensors/kitchen", b"1", ack=True)
    for file in (tmp_path / "journal").rglob("*.pcapng"):
        assert TOKEN.encode() not in file.read_bytes()
        assert b"d2x0X2NvcnJlY3Q" not in file.read_bytes(), "base64"
    login = [each.message for each in journaled(tmp_path) if each.message.topic == "$hub/login"]
    assert len([each for each in login if each.kind is Kind.REQUEST]) == 1
    assert all(b"wlt" not in each.body for each in login)
    assert any(
        each.message.topic in ("sensors/kitchen", "$hub/publish/sensors/kitchen") for each in journaled(tmp_path)
    )


async def test_an_encrypted_wolpertinger_token_is_blanked_too(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        url = url_of(hub, "wolpertinger")
        async with wireloom.connect(url, token=TOKEN, settings={"authenticate": 2}) as peer:
            await peer.publish("sensors/kitchen", b"1", ack=True)
            assert next(iter(hub.connections.values())).identities == ("token:dashboard", "trust:2", "trust:1")
    said = [each.message for each in journaled(tmp_path)]
    assert [each.body for each in said if each.topic == "$hub/login"] == [b'{"token":"%b"}' % (b"*" * len(TOKEN))]
    assert "$hub/publish/sensors/kitchen" in [each.topic for each in said]


async def test_a_token_that_is_cut_off_or_refused_is_not_kept_with_the_refused_bytes(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        _, writer = await stream_to(hub)
        body = json.dumps({"token": TOKEN}).encode()
        writer.write(struct.pack(">BIHI", 1, 0, 0xFD06, len(body) + 10) + body)
        writer.close()
        await eventually(lambda: hub.metrics.refused.value("hsp", "stream.cut") == 1)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "journal").rglob("*.pcapng"))
    assert b'{"token": "***' in kept
    assert TOKEN.encode() not in kept


async def test_guessing_is_limited_by_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = ALL + tokens(tmp_path) + "attempts_per_minute = 3\n" + RULES
    async with hub_on(tmp_path, text) as hub:
        for attempt in range(5):
            match = "401" if attempt < 3 else "429"
            with pytest.raises(wireloom.HandshakeFailed, match=match):
                await wireloom.connect(url_of(hub, "hsp"), token=f"wlt_{attempt}", reconnect=False)
        with pytest.raises(wireloom.HandshakeFailed, match="429"):
            await wireloom.connect(url_of(hub, "emp"), token=TOKEN, reconnect=False)
        assert hub.metrics.logins.value("hsp", "refused") == 3
        assert hub.metrics.logins.value("hsp", "limited") == 2
    told = [getattr(record, "event", "") for record in caplog.records if "showed a token" in record.message]
    assert told == ["login.refused"] * 3 + ["login.limited"] * 3


async def test_a_peer_that_was_refused_for_guessing_is_disconnected(tmp_path: Path) -> None:
    text = ALL + tokens(tmp_path) + "attempts_per_minute = 1\n" + RULES
    async with hub_on(tmp_path, text) as hub:
        reader, writer = await stream_to(hub)
        for number in range(2):
            writer.write(data_ack(number, b'{"token": "no"}', 0xFD06))
        answer = await asyncio.wait_for(reader.read(), 10)
        assert b"this token is not known here" in answer and b"too many wrong tokens" in answer
        writer.close()


# hsp, by the bytes


async def test_hsp_answers_a_refused_publish_with_error_403(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        reader, writer = await stream_to(hub)
        writer.write(data_ack(0, json.dumps({"token": TOKEN}).encode(), 0xFD06))
        assert await reader.readexactly(5) == ack(0)
        writer.write(data_ack(1, b"x", 7) + data_ack(2, b"x", 8))
        assert await reader.readexactly(11) == struct.pack(
            ">BIHI", 5, 2, 403, len(b"token:dashboard may not publish 'doors/front'")
        )
        await reader.readexactly(45)
        assert await reader.readexactly(5) == ack(1)
        writer.close()


async def test_a_large_read_loses_only_what_is_not_allowed(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        reader, writer = await stream_to(hub)
        writer.write(data_ack(0, json.dumps({"token": TOKEN}).encode(), 0xFD06))
        await reader.readexactly(5)
        async with wireloom.connect(url_of(hub, "yamp"), token=TOKEN) as other:
            async with other.subscribe("$hub/undeliverable") as told:
                mixed = [
                    data(b"a%d" % number, 7) + data(b"b%d" % number, 8) + data_ack(number, b"c", 7)
                    for number in range(200)
                ]
                writer.write(b"".join(mixed) + data_ack(1000, b"d", 8))
                answers = await reader.readexactly(5 * 200 + 11 + 45)
                assert answers.count(b"may not publish") == 1
                notice = json.loads((await anext(aiter(told))).body)
                assert notice["topic"] == "doors/front"
                assert notice["principal"] == "token:dashboard"
        writer.close()
        assert hub.metrics.denied.value("hsp", "publish") == 201
        assert hub.metrics.received.value("hsp") == 1 + 200 + 200 + 1
    kept = [each.message for each in journaled(tmp_path) if each.message.protocol == "hsp"]
    assert [each.topic for each in kept if each.kind is Kind.EVENT] == ["sensors/kitchen"] * 200
    assert [each.body for each in kept if each.topic == "doors/front"] == [b"d"], (
        "a refused request stays, with its answer"
    )


# Certificates


async def test_names_in_a_certificate_are_identities(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, server_key = authority.issue("localhost")
    client, client_key = authority.issue("meter-7")
    text = f"""
    [[listener]]
    url = "hsps://127.0.0.1:0"
    profile = true
    tls = {{ certificate = "{server}", key = "{server_key}", ca = "{authority.path}" }}
    [http]
    url = "off"
    [[access.rule]]
    who = ["certificate:meter-*"]
    publish = ["sensors/#"]
    """
    tls = wireloom.TLS(client, client_key, ca=authority.path, server_hostname="localhost")
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub, "hsps"), tls=tls) as peer:
        await peer.publish("sensors/kitchen", b"1", ack=True)
        with pytest.raises(wireloom.RequestFailed, match="certificate:meter-7 may not publish"):
            await peer.publish("doors/front", b"1", ack=True)
    assert records(tmp_path, "opened")[0].details["principal"] == "certificate:meter-7"


@pytest.mark.parametrize(("names", "allowed"), [("", False), (', names = ["common", "ip"]', True)])
async def test_only_common_and_dns_names_are_names_unless_configured(tmp_path: Path, names: str, allowed: bool) -> None:
    authority = Authority(tmp_path)
    server, server_key = authority.issue("localhost")
    client, client_key = authority.issue("meter-7")  # which has 127.0.0.1 among its alternative names
    text = f"""
    [[listener]]
    url = "hsps://127.0.0.1:0"
    profile = true
    tls = {{ certificate = "{server}", key = "{server_key}", ca = "{authority.path}"{names} }}
    [http]
    url = "off"
    [[access.rule]]
    who = ["certificate:127.0.0.1"]
    publish = ["by/address"]
    [[access.rule]]
    who = ["certificate:localhost"]
    publish = ["by/name"]
    """
    tls = wireloom.TLS(client, client_key, ca=authority.path, server_hostname="localhost")
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub, "hsps"), tls=tls) as peer:
        for topic, may in (("by/address", allowed), ("by/name", not allowed)):
            if may:
                await peer.publish(topic, b"1", ack=True)
            else:
                with pytest.raises(wireloom.RequestFailed, match="may not publish"):
                    await peer.publish(topic, b"1", ack=True)


def test_unknown_kinds_of_names_are_refused() -> None:
    with pytest.raises(wireloom.ConfigError, match="common, dns, email, uri, ip"):
        wireloom.TLS(names=["serial"])


def mesh_over_quic(authority: Authority, extra: str = "") -> str:
    server, server_key = authority.issue("localhost")
    return f"""
    [[listener]]
    url = "mesh+quic://127.0.0.1:0"
    settings = {{ require = "any" }}
    tls = {{ certificate = "{server}", key = "{server_key}", ca = "{authority.path}"{extra} }}
    [http]
    url = "off"
    [[access.rule]]
    who = ["certificate:meter-*"]
    publish = ["sensors/#"]
    """


async def test_names_in_a_certificate_are_identities_over_quic_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client, client_key = authority.issue("meter-7")
    tls = wireloom.TLS(client, client_key, ca=authority.path)
    async with hub_on(tmp_path, mesh_over_quic(authority)) as hub:
        async with wireloom.connect(url_of(hub, "mesh+quic"), tls=tls) as node:
            await node.publish("doors/front", b"1")
            await node.publish("sensors/kitchen", b"1")
            await eventually(lambda: any(e.message.topic == "sensors/kitchen" for e in journaled(tmp_path)))
            assert hub.metrics.denied.value("mesh", "publish") == 1
    assert all(e.message.topic != "doors/front" for e in journaled(tmp_path))
    assert records(tmp_path, "opened")[0].details["principal"] == "certificate:meter-7"


@pytest.mark.parametrize("shown", ["none", "of another authority"])
async def test_over_quic_nobody_comes_in_without_a_certificate_that_counts(tmp_path: Path, shown: str) -> None:
    authority = Authority(tmp_path)
    text = mesh_over_quic(authority)
    (tmp_path / "other").mkdir()
    pair = Authority(tmp_path / "other", "Other").issue("meter-7") if shown != "none" else (None, None)
    async with hub_on(tmp_path, text) as hub:
        with pytest.raises(wireloom.WireloomError):
            await wireloom.connect(
                url_of(hub, "mesh+quic"), tls=wireloom.TLS(*pair, ca=authority.path), reconnect=False, timeout=20
            )
        assert hub.metrics.listeners.samples()["mesh", "quic.certificate.refused"] >= 1
        assert not hub.connections
    assert records(tmp_path, "opened") == []


async def test_over_quic_a_certificate_may_be_left_to_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with hub_on(tmp_path, mesh_over_quic(authority, ", require_client_certificate = false")) as hub:
        async with wireloom.connect(url_of(hub, "mesh+quic"), tls=wireloom.TLS(ca=authority.path)) as node:
            await node.publish("sensors/kitchen", b"1")
            await eventually(lambda: hub.metrics.denied.value("mesh", "publish") == 1)


# wolpertinger


async def test_users_and_levels_of_trust_are_identities(tmp_path: Path) -> None:
    text = """
    [[listener]]
    url = "wolpertinger://127.0.0.1:0"
    profile = true
    settings = { cluster_key = "aabb", users = { ada = "pw" } }
    [http]
    url = "off"
    [[access.rule]]
    who = ["trust:3"]
    publish = ["cluster/#"]
    [[access.rule]]
    who = ["user:ada"]
    publish = ["users/ada/#"]
    """
    secrets = {"cluster_key": "aabb", "user": "ada", "password": "pw"}
    async with hub_on(tmp_path, text) as hub:
        url = url_of(hub, "wolpertinger")
        for level, allowed in ((1, ()), (3, ("cluster/a",)), (4, ("cluster/a", "users/ada/a"))):
            async with wireloom.connect(url, settings={**secrets, "authenticate": level}) as peer:
                for topic in ("cluster/a", "users/ada/a", "users/bob/a"):
                    if topic in allowed:
                        await peer.publish(topic, b"1", ack=True)
                    else:
                        with pytest.raises(wireloom.RequestFailed, match="201"):
                            await peer.publish(topic, b"1", ack=True)


# A browser cannot set headers, a program can


async def test_a_bearer_token_in_the_upgrade_request_is_a_login(tmp_path: Path) -> None:
    from websockets.asyncio.client import connect

    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        url = url_of(hub, "yamp+ws").removeprefix("yamp+")
        async with connect(url, additional_headers={"Authorization": f"Bearer {TOKEN}"}):
            await eventually(lambda: [each.principal for each in hub.connections.values()] == ["token:dashboard"])
        async with connect(url, additional_headers={"Authorization": "Bearer no"}) as socket:
            assert b"the token is not known here" in await socket.recv()


@pytest.mark.parametrize(
    ("settings", "origin", "welcome"),
    [
        ("", None, True),
        ("", "http://127.0.0.1:8080", True),
        ("", "http://localhost:3000", True),
        ("", "https://evil.example", False),
        ('origins = ["https://good.example"]', "https://good.example", True),
        ('origins = ["https://good.example"]', "http://127.0.0.1:8080", False),
        ('origins = ["https://good.example"]', None, True),
        ("origins = []", "http://127.0.0.1:8080", False),
    ],
)
async def test_web_pages_connect_only_from_listed_origins(
    settings: str, origin: str | None, welcome: bool, tmp_path: Path
) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    text = f'[[listener]]\nurl = "yamp+ws://127.0.0.1:0"\n{settings}\n[http]\nurl = "off"\n'
    async with hub_on(tmp_path, text) as hub:
        url = url_of(hub, "yamp+ws").removeprefix("yamp+")
        headers = {} if origin is None else {"Origin": origin}
        if welcome:
            async with connect(url, additional_headers=headers):
                await eventually(lambda: len(hub.connections) == 1)
        else:
            with pytest.raises(InvalidStatus, match="403"):
                await connect(url, additional_headers=headers)


# The file of tokens


def test_a_file_of_tokens_that_others_can_read_must_hold_hashes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("ann: secret\n")
    path.chmod(0o644)
    with pytest.raises(wireloom.ConfigError, match=r"tokens:1: a token that is not hashed, .* chmod 600"):
        Tokens.load(path)
    path.chmod(0o600)
    assert Tokens.load(path).holder("secret") == "ann"
    path.write_text("ann: a\nann: b\n")
    with pytest.raises(wireloom.ConfigError, match="tokens:2: there is a token of the name 'ann' above"):
        Tokens.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[access.rule]]\npublish = ["a"]\n', "hub.toml:1: access.rule: who must name somebody"),
        ('[[access.rule]]\nwho = ["anyone"]\npublish = ["a"]\n[[access.rule]]\nwho = ["bob"]\n', "hub.toml:5: access.rule: who: 'bob' is neither 'anyone' nor one of certificate, token"),
        ('[[access.rule]]\nwho = ["anyone"]\npublish = ["a/#/b"]\n', "hub.toml:3: access.rule: publish: pattern 'a/#/b'"),
        ('[[access.rule]]\nwho = ["anyone"]\n', "hub.toml:2: access.rule: the rule allows nothing"),
        ('[[access.rule]]\nwho = ["anyone"]\nwrite = ["a"]\n', "hub.toml:3: access.rule: unknown key 'write'; known: who, publish"),
        ('[access]\ntokens = "none"\n', "hub.toml:2: access: the file of tokens none cannot be read"),
        ('[access]\nattempts_per_minute = 0\n', "hub.toml:2: access: attempts_per_minute is 0; it must be more than 0"),
        ('[access]\ntoken = "a"\n', "hub.toml:2: access: unknown key 'token'; known: tokens"),
        ('[access.rule]\nwho = "anyone"\n', "access: write rules as [[access.rule]]"),
        ('[[listener]]\nurl = "yamp+ws://h"\norigins = ["example.org"]\n', "hub.toml:3: listener: origins: 'example.org' is no Origin"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    from tests.hub.running import config

    with pytest.raises(wireloom.ConfigError, match=re.escape(message)):
        config(tmp_path, text)


async def test_refusals_are_on_the_metrics_page(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            with pytest.raises(wireloom.RequestFailed, match="403"):
                await peer.request("math/add")
        _, page = await get(hub.urls["http"] + "/metrics")
        assert 'wireloom_access_denied_total{protocol="emp",right="request"} 1' in page
