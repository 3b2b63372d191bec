"""`wireloom keys`: the identity of a mesh node, whom it trusts, and tokens for a hub."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.protocols.mesh.identity import Identity, load_identity
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore, from_hex, load_trust, parse_trust

EXAMPLE = """\
examples:
  wireloom keys new node.json                    a new node that signs with Ed25519
  wireloom keys new node.json --hmac             ... with a shared secret instead
  wireloom keys show node.json                   what others need to know about it
  wireloom keys trust trust.json node.json       trust that node
  wireloom keys show node.json | ssh other wireloom keys trust trust.json -
  wireloom keys trust trust.json                 whom trust.json trusts
  wireloom keys trust trust.json --remove NODE_ID [--key-id KEY_ID]
  wireloom keys rotate node.json --trust trust.json     new keys; the old ones stay trusted until removed
  wireloom keys token dashboard --file tokens    a token for peers of a hub, printed once
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `keys`."""
    parser = subparsers.add_parser(
        "keys",
        help="make, show, trust and rotate the keys of mesh nodes; make tokens",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    new = _action(
        actions,
        "new",
        "make a key file for a new node",
        "wireloom keys new node.json",
    )
    new.add_argument("file", type=Path, metavar="KEYFILE")
    new.add_argument("--hmac", action="store_true", help="a shared secret instead of an Ed25519 key")
    new.add_argument("--both", action="store_true", help="a shared secret and an Ed25519 key")
    new.add_argument("--node-id", metavar="HEX", help="16 bytes as hex; default: random")
    new.add_argument("--force", action="store_true", help="replace a file that is there")
    new.set_defaults(run=run_new)

    show = _action(
        actions,
        "show",
        "show what others need to trust a node: an entry for their trust file",
        "wireloom keys show node.json > entry.json",
    )
    show.add_argument("file", type=Path, metavar="KEYFILE")
    show.set_defaults(run=run_show)

    trust = _action(
        actions,
        "trust",
        "add nodes to a trust file, remove them, or list it",
        "wireloom keys trust trust.json node.json",
    )
    trust.add_argument("file", type=Path, metavar="TRUSTFILE")
    trust.add_argument("entry", nargs="*", metavar="ENTRY", help="a key file, what `keys show` printed, or - for stdin")
    trust.add_argument("--remove", metavar="NODE_ID", help="trust this node no longer")
    trust.add_argument("--key-id", metavar="HEX", help="with --remove: only this key of the node")
    trust.add_argument("--encryption-key", metavar="HEX", help="add a new random encryption key with this identifier")
    trust.set_defaults(run=run_trust)

    rotate = _action(
        actions,
        "rotate",
        "give a node new keys under a new key id",
        "wireloom keys rotate node.json --trust trust.json",
    )
    rotate.add_argument("file", type=Path, metavar="KEYFILE")
    rotate.add_argument(
        "--trust", type=Path, metavar="TRUSTFILE", help="trust the new keys there, before they are used"
    )
    rotate.add_argument("--remove-old", action="store_true", help="and the old ones no longer")
    rotate.set_defaults(run=run_rotate)

    token = actions.add_parser("token", help="make a token that lets a peer show a hub who it is")
    token.add_argument("name", metavar="NAME", help="what rules call it: token:NAME")
    token.add_argument("--file", type=Path, default=Path("tokens"), metavar="FILE", help="the hub's file of tokens")
    token.add_argument("--remove", action="store_true", help="remove the token of that name instead")
    token.set_defaults(run=run_token)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_: str, example: str
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name,
        help=help_,
        description=f"{help_[:1].upper()}{help_[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_new(arguments: argparse.Namespace) -> int:
    """Make a key file."""
    path: Path = arguments.file
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} is there already; `wireloom keys rotate {path}` gives that node new keys")
    node_id = None if arguments.node_id is None else from_hex(arguments.node_id, 16, "--node-id", "keys new")
    identity = Identity.generate(
        signature=not arguments.hmac or arguments.both, hmac=arguments.hmac or arguments.both, node_id=node_id
    )
    identity.save(path)
    print(f"{path}: node {identity.node_id.hex()}, key {identity.auth_key_id.hex()}")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print the entry for others' trust files; it holds the shared secret, where there is one."""
    key = load_identity(arguments.file).trusted_key()
    print(json.dumps(key.to_json()))
    if key.hmac_secret is not None:
        print("wireloom: this holds a shared secret: send it over a safe way only", file=sys.stderr)
    return 0


def run_trust(arguments: argparse.Namespace) -> int:
    """Change or list a trust file."""
    path: Path = arguments.file
    store = load_trust(path) if path.exists() else TrustStore()
    changed = False
    for entry in arguments.entry:
        for key in _entries(entry):
            store.add(key)
            changed = True
            print(f"{path}: trusts node {key.node_id.hex()}, key {key.auth_key_id.hex()}")
    if arguments.encryption_key is not None:
        identifier = from_hex(arguments.encryption_key, 16, "--encryption-key", "keys trust")
        if identifier in store.encryption_keys:
            raise ConfigError(f"{path}: encryption key {identifier.hex()} is there already")
        import secrets

        store.encryption_keys[identifier] = secrets.token_bytes(32)
        changed = True
        print(f"{path}: encryption key {identifier.hex()}")
    if arguments.remove is not None:
        node_id = from_hex(arguments.remove, 16, "--remove", "keys trust")
        key_id = None if arguments.key_id is None else from_hex(arguments.key_id, 4, "--key-id", "keys trust")
        if not store.remove(node_id, key_id):
            raise ConfigError(f"{path} trusts no such key of node {node_id.hex()}")
        changed = True
        print(f"{path}: trusts node {node_id.hex()} no longer" + (f" with key {key_id.hex()}" if key_id else ""))
    if changed:
        store.save(path)
        return 0
    if not path.exists():
        raise ConfigError(f"there is no file {path}; add a node with: wireloom keys trust {path} KEYFILE")
    for key in store:
        sorts = [name for name, value in (("hmac", key.hmac_secret), ("ed25519", key.ed25519_public)) if value]
        print(f"node {key.node_id.hex()}  key {key.auth_key_id.hex()}  {' '.join(sorts)}")
    for identifier in store.encryption_keys:
        print(f"encryption key {identifier.hex()}")
    return 0


def _entries(source: str) -> list[TrustedKey]:
    """The keys in a key file, in a trust file, or in what `keys show` printed."""
    if source == "-":
        text = sys.stdin.read()
    else:
        try:
            text = Path(source).read_text()
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}") from None
    if isinstance(content, dict):
        if "ed25519_private" in content:
            return [load_identity(source).trusted_key()]
        content = [content]
    return list(parse_trust(json.dumps(content), source))


def run_rotate(arguments: argparse.Namespace) -> int:
    """Give a node new keys."""
    old = load_identity(arguments.file)
    new = old.rotate()
    if arguments.remove_old and arguments.trust is None:
        raise ConfigError("--remove-old needs --trust TRUSTFILE, where the old key is to be removed")
    if arguments.trust is not None:
        store = load_trust(arguments.trust) if arguments.trust.exists() else TrustStore()
        store.add(new.trusted_key())
        if arguments.remove_old:
            store.remove(old.node_id, old.auth_key_id)
        store.save(arguments.trust)
    new.save(arguments.file)
    print(f"{arguments.file}: node {new.node_id.hex()}, key {old.auth_key_id.hex()} -> {new.auth_key_id.hex()}")
    return 0


def run_token(arguments: argparse.Namespace) -> int:
    """Make a token, or remove one."""
    import hashlib
    import secrets

    path, name = arguments.file, arguments.name
    if not name.strip() or ":" in name or "#" in name or not name.isprintable():
        raise ConfigError(f"the name of a token is a word without ':' and '#', not {name!r}")
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.partition(":")[0].strip() != name]
    if arguments.remove and len(kept) == len(lines):
        raise ConfigError(f"{path} has no token {name!r}")
    token = "wlt_" + secrets.token_urlsafe(32)
    if not arguments.remove:
        kept.append(f"{name}: sha256:{hashlib.sha256(token.encode()).hexdigest()}")
    fresh = path.with_name(path.name + ".new")
    fresh.touch(0o600)
    fresh.write_text("".join(f"{line}\n" for line in kept))
    fresh.replace(path)
    print(f"{path}: {name} is removed" if arguments.remove else token)
    return 0
