"""The options of the data source: their names, their defaults, and what is said about wrong ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wireloom.journal.keys import read_key_file
from wireloom.model import ConfigError, parse_size
from wireloom.pipeline import planning
from wireloom.pipeline.captures.detect import IDLE_S, Choice, Given, parse_given
from wireloom.pipeline.captures.planning import LATENESS_S
from wireloom.pipeline.schemas import MESSAGES, REJECTS, Table
from wireloom.protocols.registry import protocols
from wireloom.topics import read_topic_map

DEFAULTS = {
    "table": "messages",
    "partitionBytes": "64m",
    "maxBytesPerTrigger": "512m",
    "trust": "",
    "keys": "",
    "ports": "",
    "auto": "true",
    "idle": str(IDLE_S),
    "lateness": str(LATENESS_S),
    "topics": "",
    "set": "",
    "flowGroups": "auto",
    "stateDir": "",
}
"""Every option beside the path, with what it is when it is not given."""


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """How captures are read; plain values, so that they travel to tasks."""

    ports: str = ""
    auto: bool = True
    idle_s: float = IDLE_S
    groups: int | None = None
    """In how many groups flows are read; None: as suits the machine."""
    state: str = ""
    """Where a stream keeps what is unfinished."""
    topics: Mapping[int, str] = field(default_factory=dict)
    """Numbers that stand for topics, in protocols that number them."""
    given: Given = ()
    """Settings of protocols."""

    @property
    def choice(self) -> Choice:
        """How protocols are told apart."""
        return Choice.parse(self.ports, self.auto, self.given)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the source, checked."""

    inputs: tuple[str, ...]
    table: Table
    partition_bytes: int
    max_bytes: int
    trust: str = ""
    """A trust file: whose signatures hold."""
    keys: str = ""
    """A key file: what opens encrypted connections."""
    captures: CaptureOptions = field(default_factory=CaptureOptions)
    lateness_s: float = LATENESS_S
    """So much later than another input may come what is earlier than it."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Options by name, in any case; an unknown or a wrong one is an error that names the right ones."""
        known = {name.lower(): name for name in DEFAULTS}
        values = dict(DEFAULTS)
        inputs: list[str] = []
        for name, value in given.items():
            if name.lower() == "path":
                inputs.append(value)
            elif name.lower() == "paths":
                inputs += json.loads(value)
            elif name.lower() in known:
                values[known[name.lower()]] = value
            else:
                listed = ", ".join(sorted(known.values()))
                raise ConfigError(f"unknown option {name!r} of the format wireloom; known: {listed}")
        tables = {table.name: table for table in (MESSAGES, REJECTS)}
        if values["table"] not in tables:
            raise ConfigError(f"option 'table' is {values['table']!r}; it must be {' or '.join(tables)}")
        return cls(
            tuple(planning.check_inputs(inputs)),
            tables[values["table"]],
            parse_size("partitionBytes", values["partitionBytes"]),
            parse_size("maxBytesPerTrigger", values["maxBytesPerTrigger"]),
            check_trust(values["trust"]),
            check_keys(values["keys"]),
            _capture_options(values),
            _seconds("lateness", values["lateness"]),
        )


def check_trust(path: str) -> str:
    """The absolute path of a trust file that every protocol which has such files can read; empty for none."""
    if not path:
        return ""
    absolute = str(Path(path).resolve())
    for known in protocols().values():
        if known.trust_setting is not None:
            known.columns().auditor(known.settings({known.trust_setting: absolute}))
    return absolute


def check_keys(path: str) -> str:
    """The absolute path of a key file that can be read; empty for none."""
    if not path:
        return ""
    absolute = str(Path(path).resolve())
    try:
        read_key_file(absolute)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the key file: {error.strerror}") from None
    return absolute


_SWITCH = {"true": True, "false": False, "on": True, "off": False}


def _capture_options(values: Mapping[str, str]) -> CaptureOptions:
    auto, idle, groups = values["auto"].lower(), values["idle"], values["flowGroups"].lower()
    if auto not in _SWITCH:
        raise ConfigError(f"option 'auto' is {values['auto']!r}; it must be true or false")
    if not _seconds("idle", idle):
        raise ConfigError(f"option 'idle' is {idle!r}; it must be a number of seconds such as {IDLE_S}")
    if groups != "auto" and not re.fullmatch(r"[1-9]\d{0,3}", groups):
        raise ConfigError(f"option 'flowGroups' is {groups!r}; it must be auto or a number of tasks such as 8")
    Choice.parse(values["ports"])
    number = None if groups == "auto" else int(groups)
    topics = read_topic_map(Path(values["topics"])) if values["topics"] else {}
    given = parse_given(values["set"])
    return CaptureOptions(values["ports"], _SWITCH[auto], float(idle), number, values["stateDir"], topics, given)


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        raise ConfigError(f"option {name!r} is {text!r}; it must be a number of seconds such as {DEFAULTS[name]}")
    return float(text)
