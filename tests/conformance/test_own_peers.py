"""Our own hub and our own clients keep to what the cases ask of everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import hub_on, url_of
from wireloom.conformance.run import CaseOutcome, CaseResult, CaseVerdict, check_clients, check_server, choose
from wireloom.protocols.cases import Level
from wireloom.protocols.contract import Role
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.trust import TrustStore
from wireloom.protocols.registry import BUILT_IN as BUILT_IN_PROTOCOLS
from wireloom.protocols.registry import protocol
from wireloom.transports import TLS

LISTENER = """
[[listener]]
url = "{url}"
{settings}
[http]
url = "off"
"""
PATIENCE = 20.0
BUILT_IN = ["hsp", "emp", "yamp", "wolpertinger", "mesh"]


# Without the profile the hub has no answer for a request that nobody provides, and the cases ask for one.
SETTINGS = {"mesh": 'settings = { require = "any" }', "emp": 'settings = { profile = "on" }'}


def hub_text(url: str) -> str:
    return LISTENER.format(url=url, settings=SETTINGS.get(url.partition(":")[0], ""))


def failures(outcome: CaseOutcome) -> list[str]:
    return [f"{each.case.name}: {each.detail}" for each in outcome.results if each.verdict is not CaseVerdict.PASSED]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_protocol_has_cases_for_both_ends_with_names_of_their_own(name: str) -> None:
    for role, least in ((Role.SERVER, 8), (Role.CLIENT, 3)):
        cases = [case for case in protocol(name).cases() if case.role is role]
        assert len(cases) >= least
        assert len({case.name for case in cases}) == len(cases)
        assert any(case.level is Level.MUST for case in cases)


def test_no_built_in_protocol_is_left_out() -> None:
    assert sorted(BUILT_IN) == sorted(BUILT_IN_PROTOCOLS)


@pytest.mark.parametrize("scheme", [*BUILT_IN, "yamp+ws"])
async def test_our_hub_passes_every_case_for_servers(scheme: str, tmp_path: Path) -> None:
    async with hub_on(tmp_path, hub_text(f"{scheme}://127.0.0.1:0")) as hub:
        outcome = await check_server(url_of(hub, scheme), patience=PATIENCE)
    assert failures(outcome) == []
    assert outcome.conforms


def trusting(folder: Path, probe: Identity) -> dict[str, object]:
    """Key files of the probe and of a node, and a trust file with both; returns the settings of the probe."""
    node = Identity.generate()
    probe.save(folder / "probe.json")
    node.save(folder / "node.json")
    TrustStore([probe.trusted_key(), node.trusted_key()]).save(folder / "trust.json")
    return {"key": str(folder / "probe.json"), "trust": str(folder / "trust.json")}


@pytest.mark.parametrize(
    "probe",
    [Identity.generate(), Identity.generate(hmac=True), Identity.generate(hmac=True, signature=False)],
    ids=["signature", "both", "hmac"],
)
async def test_our_hub_passes_for_a_mesh_node_that_it_trusts(probe: Identity, tmp_path: Path) -> None:
    settings = trusting(tmp_path, probe)
    own = f'settings = {{ key = "{tmp_path}/node.json", trust = "{tmp_path}/trust.json" }}'
    async with hub_on(tmp_path / "data", LISTENER.format(url="mesh://127.0.0.1:0", settings=own)) as hub:
        outcome = await check_server(url_of(hub, "mesh"), settings=settings, patience=PATIENCE)
        unsigned = await check_server(url_of(hub, "mesh"), patience=0.5, only="reserved flags*")
    assert failures(outcome) == []
    assert [each.verdict for each in unsigned.results] == [CaseVerdict.SKIPPED]
    assert "--set key=FILE" in unsigned.results[0].detail


@pytest.mark.parametrize("trust", [1, 2, 3, 4])
async def test_a_wolpertinger_server_is_checked_after_a_login(trust: int, tmp_path: Path) -> None:
    """It answers nobody else but with error 201."""
    cluster, users = "00ff" * 8, {"ada": "lovelace"}
    (tmp_path / "theirs.json").write_text(json.dumps({"cluster_key": cluster, "users": users}))
    login = {"cluster_key": cluster, "user": "ada", "password": "lovelace"}
    (tmp_path / "ours.json").write_text(json.dumps(login))
    (tmp_path / "wrong.json").write_text(json.dumps({**login, "cluster_key": "11ff" * 8}))
    theirs = f'settings = {{ required_trust = {trust}, secrets = "{tmp_path}/theirs.json" }}'
    async with hub_on(tmp_path / "hub", LISTENER.format(url="wolpertinger://127.0.0.1:0", settings=theirs)) as hub:
        url, own = url_of(hub, "wolpertinger"), {"authenticate": trust, "secrets": f"{tmp_path}/ours.json"}
        outcome = await check_server(url, settings=own, patience=PATIENCE)
        code = "its error code is 304"
        stranger = await check_server(url, patience=PATIENCE, only=code)
        wrong = {"authenticate": trust, "secrets": f"{tmp_path}/wrong.json"}
        impostor = await check_server(url, settings=wrong, patience=PATIENCE, only=code)
    assert failures(outcome) == []
    assert failures(stranger) == [f"{code}: error code 201"]
    if trust > 2:
        assert failures(impostor) == [
            f"{code}: the peer refused Authentication.ClusterAuthVerify: is 'authenticate' more than it offers?"
        ]


@pytest.mark.parametrize(
    ("scheme", "theirs", "ours"),
    [
        ("emp", 'size_mode = "exclusive", profile = "on"', {"size_mode": "exclusive"}),
        ("yamp", 'serializers = ["msgpack"]', {"serializer": "msgpack"}),
        ("yamp", 'serializers = ["raw"]', {"serializer": "raw"}),
    ],
)
async def test_settings_tell_how_to_talk_to_a_peer(
    scheme: str, theirs: str, ours: dict[str, object], tmp_path: Path
) -> None:
    text = LISTENER.format(url=f"{scheme}://127.0.0.1:0", settings=f"settings = {{ {theirs} }}")
    async with hub_on(tmp_path, text) as hub:
        outcome = await check_server(url_of(hub, scheme), settings=ours, patience=PATIENCE)
        untold = await check_server(url_of(hub, scheme), patience=1.0, only="*ping*")
    assert failures(outcome) == []
    assert untold.count(CaseVerdict.FAILED) == len(untold.results) > 0


async def test_our_hub_passes_over_a_unix_socket(tmp_path: Path) -> None:
    async with hub_on(tmp_path, hub_text(f"hsp+unix://{tmp_path}/hub.sock")):
        outcome = await check_server(f"hsp+unix://{tmp_path}/hub.sock", patience=PATIENCE, only="*PING*")
    assert failures(outcome) == []
    assert len(outcome.results) == 3


async def test_a_server_is_checked_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    ours = TLS(certificate=certificate, key=key)
    async with wireloom.serve("emps://127.0.0.1:0", lambda message: message.body, tls=ours) as server:
        outcome = await check_server(server.url, tls=TLS(ca=authority.path), patience=PATIENCE, only="*hello*")
    assert failures(outcome) == []
    assert len(outcome.results) == 4


@pytest.mark.parametrize("name", [*BUILT_IN, "mesh with keys"])
async def test_our_client_passes_every_case_for_clients(name: str, tmp_path: Path) -> None:
    name, _, keys = name.partition(" with ")
    settings = trusting(tmp_path, Identity.generate(hmac=True)) if keys else {}
    theirs: dict[str, object] = {**settings, "key": str(tmp_path / "node.json")} if keys else {}
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settled: asyncio.Queue[CaseResult] = asyncio.Queue()
    check = asyncio.create_task(
        check_clients(
            f"{name}://127.0.0.1:0",
            settings=settings,
            patience=PATIENCE,
            wait=2 * PATIENCE,
            tell=settled.put_nowait,
            listening=url.set_result,
        )
    )
    place = await url
    for _ in choose(protocol(name), Role.CLIENT):
        client = wireloom.connect(place, settings=theirs, reconnect=False, timeout=PATIENCE)
        # Some cases refuse the client's handshake; that it then fails is what they ask for.
        with contextlib.suppress(wireloom.WireloomError):
            await client.open()
        await settled.get()
        await client.close(drain=0)
    outcome = await check
    assert failures(outcome) == []
    assert outcome.role is Role.CLIENT
