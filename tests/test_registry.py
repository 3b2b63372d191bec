"""Protocols and URL schemes are found by name: the built-in ones, and those other packages bring."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from wireloom.model import ConfigError
from wireloom.protocols import registry
from wireloom.protocols.contract import Protocol
from wireloom.protocols.hsp import HSP

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a real package with one entry point where Python finds packages."""
    before = set(sys.modules)

    def add(entry: str, source: str) -> None:
        (tmp_path / "guest_protocol.py").write_text(textwrap.dedent(source))
        metadata = tmp_path / "guest-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        registry.protocols.cache_clear()

    yield add
    registry.protocols.cache_clear()
    for name in set(sys.modules) - before:
        if name == "guest_protocol":
            del sys.modules[name]


GUEST = """
    from wireloom.protocols.contract import Scheme
    from wireloom.protocols.hsp.protocol import Hsp

    class Guest(Hsp):
        name = "guest"
        schemes = (Scheme("guest", "tcp", 6000),)

    GUEST = Guest()
"""


def test_every_protocol_goes_by_its_own_name() -> None:
    found = registry.protocols()
    assert set(registry.BUILT_IN) <= set(found)
    assert all(isinstance(each, Protocol) and each.name == name for name, each in found.items())


def test_hsp_is_found_by_name_and_by_scheme() -> None:
    assert registry.protocol("hsp") is HSP
    assert registry.scheme("hsp") == (HSP, HSP.schemes[0])
    assert registry.scheme("hsps") == (HSP, HSP.schemes[1])


def test_the_entry_points_of_the_package_are_the_built_in_protocols() -> None:
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    section = pyproject.partition(f'[project.entry-points."{registry.GROUP}"]')[2].partition("\n[")[0]
    lines = [line.partition(" = ") for line in section.strip().splitlines()]
    assert {name: reference.strip('"') for name, _, reference in lines} == registry.BUILT_IN


def test_schemes_belong_to_one_protocol_each() -> None:
    names = [scheme.name for protocol in registry.protocols().values() for scheme in protocol.schemes]
    assert len(names) == len(set(names))


def test_an_unknown_protocol_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        registry.protocol("smtp")
    assert str(caught.value) == f"unknown protocol 'smtp'; known: {', '.join(sorted(registry.protocols()))}"


def test_an_unknown_scheme_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown URL scheme 'http'; known: .*hsp, hsp[+]unix, hsps"):
        registry.scheme("http")


def test_a_package_brings_a_protocol_by_an_entry_point(install: Install) -> None:
    install("guest = guest_protocol:GUEST", GUEST)
    assert EntryPoint("guest", "guest_protocol:GUEST", registry.GROUP) in entry_points(group=registry.GROUP)
    guest = registry.protocol("guest")
    assert guest.name == "guest"
    assert registry.scheme("guest") == (guest, guest.schemes[0])
    assert registry.protocol("hsp") is HSP


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("other = guest_protocol:GUEST", "entry point other = guest_protocol:GUEST .* is not a protocol named 'other'"),
        ("guest = guest_protocol:Guest", "is not a protocol named 'guest'"),
        ("guest = guest_protocol:NOTHING", "guest = guest_protocol:NOTHING of wireloom.protocols cannot be loaded"),
        ("guest = no_such_module:GUEST", "cannot be loaded: No module named 'no_such_module'"),
    ],
)
def test_an_entry_point_that_is_no_protocol_is_named(install: Install, entry: str, complaint: str) -> None:
    install(entry, GUEST)
    with pytest.raises(ConfigError, match=complaint):
        registry.protocols()
