"""The options of the data source: their names, their defaults, and what is said about wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from wireloom.model import ConfigError, parse_size
from wireloom.pipeline import planning
from wireloom.pipeline.schemas import MESSAGES, REJECTS, Table
from wireloom.protocols.registry import protocols

DEFAULTS = {"table": "messages", "partitionBytes": "16m", "maxBytesPerTrigger": "512m", "trust": ""}
"""Every option beside the path, with what it is when it is not given."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the source, checked."""

    inputs: tuple[str, ...]
    table: Table
    partition_bytes: int
    max_bytes: int
    trust: str = ""
    """A trust file: whose signatures hold."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
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
        )


def check_trust(path: str) -> str:
    """The absolute path of a trust file that every protocol which has such files can read; empty for none."""
    if not path:
        return ""
    absolute = str(Path(path).resolve())
    for known in protocols().values():
        if any(field.name == "trust" for field in fields(known.settings_type)):
            known.columns().auditor(known.settings({"trust": absolute}))
    return absolute
