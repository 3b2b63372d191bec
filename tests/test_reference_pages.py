"""The reference pages name everything there is, and nothing else: they are compared with the code they describe."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

import pytest

import wireloom
import wireloom.mesh
import wireloom.peers.components
import wireloom.pipeline
import wireloom.sync
import wireloom.testing
from wireloom.cli import main as command_line
from wireloom.hub import config
from wireloom.hub.hub import Hub
from wireloom.hub.limits import HubLimits
from wireloom.hub.metrics import Counter
from wireloom.pipeline.schemas import STATE, TABLES, Table
from wireloom.protocols.contract import Settings
from wireloom.protocols.registry import protocols

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its head left out."""
    text = (REFERENCE / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no heading {heading!r}"
    table = re.search(r"(?:^\|.*\n)+", found[1], re.MULTILINE)
    lines = table[0].splitlines()[2:] if table else []
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def shown(value: object) -> str:
    """A default as the page writes it."""
    match value:
        case None:
            return "none"
        case Enum():
            return f'`"{value.value}"`'
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case str():
            return f'`"{value}"`'
        case tuple():
            return "`[" + ", ".join(f'"{each}"' for each in value) + "]`"
        case _:
            return f"`{value}`"


def defaults(kind: type[Settings]) -> list[list[str]]:
    found = []
    for field in fields(kind):
        value = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
        found.append([f"`{field.name}`", shown(value)])
    return found


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("[journal]", config.JournalSettings),
        ("[limits]", HubLimits),
        ("[archive]", config.ArchiveSettings),
        ("[tracing]", config.TracingSettings),
        *((name, protocol.settings_type) for name, protocol in protocols().items()),
    ],
)
def test_every_setting_is_on_the_page_with_its_default(heading: str, kind: type[Settings]) -> None:
    found = rows("configuration.md", heading)
    assert [row[:2] for row in found] == defaults(kind)
    assert all(row[2] for row in found)


def test_every_section_and_every_key_of_a_listener_is_on_the_page() -> None:
    assert sorted(row[0].strip("`") for row in rows("configuration.md", "The file")) == sorted(config._SECTIONS)
    with pytest.raises(wireloom.ConfigError) as caught:
        config.make_listener({"no such key": 1})
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert [row[0].strip("`") for row in rows("configuration.md", "[[listener]]")] == known
    assert rows("configuration.md", "[http]")[0][:2] == ["`url`", shown(config.DEFAULT_HTTP)]


def test_every_scheme_is_on_the_page() -> None:
    text = (REFERENCE / "configuration.md").read_text()
    found = re.findall(r"^\| `([a-z+]+)` \| ([a-z]+) \| ([a-z]+) \| (\d+) \|$", text, re.MULTILINE)
    schemes = {
        (scheme.name, protocol.name, scheme.transport, str(scheme.port))
        for protocol in protocols().values()
        for scheme in protocol.all_schemes
    }
    assert set(found) == schemes


@pytest.mark.parametrize("table", [*TABLES.values(), STATE], ids=lambda table: table.name)
def test_every_column_is_on_the_page(table: Table) -> None:
    expected = [[f"`{column.name}`", f"`{column.type}`", column.comment] for column in table.columns]
    assert rows("tables.md", table.name) == expected


def test_every_rule_of_a_conversation_is_on_the_page() -> None:
    known = [rule for _, each in sorted(protocols().items()) for rule in each.conversation.rules]
    found = [row for row in rows("tables.md", "Rules") if not row[0].startswith("`mesh.")]
    assert found == [[f"`{rule.name}`", str(rule.severity), rule.text] for rule in known]


async def test_every_metric_is_on_the_page(tmp_path: Path) -> None:
    settings = {"listener": [{"url": "hsp://127.0.0.1:0"}], "http": {"url": "off"}}
    async with Hub(config.parse_config(settings, "", "test", tmp_path)) as hub:
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", hub.metrics.text(), re.MULTILINE))
        labels = {metric.name: metric.labels for metric in vars(hub.metrics).values() if isinstance(metric, Counter)}
    expected = {(name, kind, labels.get(name, ())) for name, kind in kinds.items()}
    found = {
        (row[0].strip("`"), row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in rows("metrics.md", "Metrics")
    }
    assert found == expected


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command that has no commands of its own."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for each in dict.fromkeys(action.choices.values()):
            yield from commands(each)


COMMANDS = {parser.prog: parser for parser in commands(command_line._parser([]))}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_the_command_is_on_the_page(name: str) -> None:
    options = {
        ", ".join(action.option_strings) or str(action.metavar or action.dest).upper()
        for action in COMMANDS[name]._actions
        if action.help != argparse.SUPPRESS and "--help" not in action.option_strings
    }
    found = [re.sub(r" [A-Z=_]+(?=`)", "", row[0]) for row in rows("cli.md", name)]
    assert sorted(cell.replace("`", "") for cell in found) == sorted(options)


def test_every_command_on_the_page_exists() -> None:
    headings = re.findall(r"^## (wireloom .+)$", (REFERENCE / "cli.md").read_text(), re.MULTILINE)
    assert headings == list(dict.fromkeys(headings))
    assert set(headings) == set(COMMANDS)


def test_every_public_name_is_on_the_page() -> None:
    found = set(re.findall(r"^::: (\S+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE))
    public = {
        f"{module.__name__}.{name}"
        for module in (
            wireloom,
            wireloom.mesh,
            wireloom.peers.components,
            wireloom.sync,
            wireloom.testing,
            wireloom.pipeline,
        )
        for name in module.__all__
    }
    assert found == public


def test_every_method_of_a_peer_is_on_the_page() -> None:
    listed = re.search(
        r"^::: wireloom\.Peer\n.*?members: \[([^\]]+)\]", (REFERENCE / "api.md").read_text(), re.M | re.S
    )
    assert listed is not None
    public = {name for name in vars(wireloom.Peer) if not name.startswith("_")}
    assert public - set(listed[1].split(", ")) == set()
