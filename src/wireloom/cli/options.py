"""Options that several commands share: protocol settings, topic maps, certificates."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.protocols.contract import Protocol
from wireloom.protocols.settings import Written
from wireloom.topics import read_topic_map
from wireloom.transports import TLS


def add_settings(parser: argparse.ArgumentParser, *, topics: bool = True) -> None:
    """`--set` and `--topics`."""
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the protocol in the syntax of TOML, such as max_payload=65536; may be repeated",
    )
    if topics:
        parser.add_argument(
            "--topics",
            type=Path,
            metavar="FILE",
            help='numbers that stand for topics (hsp types), as JSON such as {"7": "sensors/kitchen"}, or TOML',
        )


def add_tls(parser: argparse.ArgumentParser, *, server: bool, token: bool = True) -> None:
    """Certificates, for URLs with TLS."""
    group = parser.add_argument_group("TLS")
    group.add_argument("--certificate", type=Path, metavar="FILE", help="our certificate (PEM)")
    group.add_argument("--key", type=Path, metavar="FILE", help="its private key (PEM)")
    what = "whose client certificates are asked for" if server else "that signed the server's certificate"
    group.add_argument("--ca", type=Path, metavar="FILE", help=f"the authority {what} (PEM)")
    if not server:
        group.add_argument("--insecure", action="store_true", help="take any certificate; for tests only")
    if not server and token:
        parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file with the token to show to a hub")


def settings(arguments: argparse.Namespace) -> dict[str, object]:
    """The values of `--set`.

    >>> settings(argparse.Namespace(settings=["max_payload=10"]))["max_payload"].value
    10
    """
    values: dict[str, object] = {}
    for text in arguments.settings:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {text}: write it as --set NAME=VALUE")
        values[name.strip()] = Written(value.strip())
    return values


def topics(arguments: argparse.Namespace) -> dict[int, str] | None:
    """The map of `--topics`."""
    return None if arguments.topics is None else read_topic_map(arguments.topics)


def tls(arguments: argparse.Namespace) -> TLS | None:
    """The certificates that were named, if any."""
    insecure = getattr(arguments, "insecure", False)
    if arguments.certificate is None and arguments.ca is None and not insecure:
        return None
    return TLS(certificate=arguments.certificate, key=arguments.key, ca=arguments.ca, verify=not insecure)


def token(arguments: argparse.Namespace) -> str | None:
    """The token in the file that was named, if any; tokens do not stand on the command line, where others see them."""
    path: Path | None = arguments.token_file
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path} cannot be read: {error}") from None


def protocol_options(protocol: Protocol, words: Sequence[str]) -> Mapping[str, object]:
    """Options that only this protocol has, as settings; `words` are the arguments nobody else understood."""
    parser = argparse.ArgumentParser(prog=f"wireloom decode {protocol.name}", add_help=False)
    for option, setting in protocol.decode_options.items():
        parser.add_argument(f"--{option}", dest=setting, default=argparse.SUPPRESS)
    values, rest = parser.parse_known_args(list(words))
    if rest:
        known = ", ".join(f"--{option}" for option in protocol.decode_options) or "none"
        raise ConfigError(f"unknown option {rest[0]}; options that only {protocol.name} has: {known}")
    return vars(values)
