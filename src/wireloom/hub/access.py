"""Who may do what: rules of the configuration, applied to the identities that peers have proved.

An identity is a kind and a name: `certificate:meter-7`, `token:dashboard`, `user:ada`, `mesh:<node>`,
`xmpp:ada@example.org`. Identities come from the transport, from the protocol and from tokens. A rule names identities
and gives them the right to publish to, subscribe to, request or provide topics. Rules only add rights: what no rule
allows is refused. Without any rule, peers on this machine may do everything, and others nothing.

`Grants` caches decisions. All connections with the same identities share one. So a check costs one dictionary lookup
for each message, or for each topic of a read in columns.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from wireloom.hub.config_errors import WrongKey
from wireloom.model import ConfigError
from wireloom.protocols.registry import protocols
from wireloom.topics import covers, matches, validate_pattern

ANYONE = "anyone"
"""In a rule: everybody, with or without an identity."""
ANONYMOUS = "anonymous"
"""The principal of a peer that has proved nothing."""
KINDS = {
    "certificate": "a name in the client's certificate: the common name or an alternative one",
    "token": "the name of a token",
    "uid": "the number of the user at the other end of a Unix socket",
    "xmpp": "the address, without resource, that the XMPP server vouches for",
}
"""Kinds of identities that do not depend on the protocol."""
REMEMBERED = 4096
TOKEN_PREFIX = "wlt_"  # noqa: S105
"""Prefix of tokens made by `wireloom keys token`.

It lets the hub recognise tokens in places where they do not belong.
"""
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")


class Right(StrEnum):
    """What a rule can allow."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    REQUEST = "request"
    PROVIDE = "provide"


_MATCH = {Right.PUBLISH: matches, Right.REQUEST: matches, Right.SUBSCRIBE: covers, Right.PROVIDE: covers}


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Gives some identities some rights.

    >>> rule = AccessRule(("certificate:meter-*",), {Right.PUBLISH: ("sensors/#",)})
    >>> rule.applies_to(("certificate:meter-7",)), rule.applies_to(("token:meter-7",))
    (True, False)
    """

    who: tuple[str, ...]
    rights: Mapping[Right, tuple[str, ...]]

    def applies_to(self, identities: tuple[str, ...]) -> bool:
        """Whether the rule names one of the identities. `*` in a rule stands for any text."""
        return any(
            who == ANYONE or any(fnmatch.fnmatchcase(identity, who) for identity in identities) for who in self.who
        )


class Tokens:
    """Token names by the hash of the token.

    >>> tokens = Tokens({"dashboard": Tokens.digest("secret")})
    >>> tokens.holder("secret"), tokens.holder("guess")
    ('dashboard', None)
    """

    def __init__(self, digests: Mapping[str, bytes] | None = None) -> None:
        self._digests = dict(digests or {})

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tokens."""
        return tuple(self._digests)

    @staticmethod
    def digest(token: str) -> bytes:
        """The hash that is stored of a token. Tokens are long and random, so one round of a fast hash is enough."""
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

    def holder(self, token: str) -> str | None:
        """The name of a token. It is compared with every known token, each in constant time."""
        shown = self.digest(token)
        found = None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, shown):
                found = name
        return found

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Load a token file.

        Each line is `name: sha256:<hash>`, or `name: token` if only the owner can read the file.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file of tokens {path} cannot be read: {error}") from None
        digests: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, colon, token = (part.strip() for part in line.partition(":"))
            if not colon or not name or not token:
                raise ConfigError(f"{path}:{number}: write a token as `name: sha256:<hash>`")
            if name in digests:
                raise ConfigError(f"{path}:{number}: there is a token of the name {name!r} above; names are unique")
            hashed = _HASHED.fullmatch(token)
            if hashed is None and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"{path}:{number}: a token that is not hashed, in a file that others can read; "
                    f"run chmod 600 {path}, or write sha256:<hash>"
                )
            digests[name] = cls.digest(token) if hashed is None else bytes.fromhex(hashed[1])
        return cls(digests)


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """The table `[access]`."""

    rules: tuple[AccessRule, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    attempts_per_minute: float = 10.0


def identity_kinds() -> dict[str, str]:
    """Every kind of identity, with the meaning of its name."""
    found = dict(KINDS)
    for protocol in protocols().values():
        found.update(protocol.identity_kinds)
    return found


_KEYS = ("tokens", "attempts_per_minute", "rule")


def parse_access(table: object) -> AccessConfig:
    """Parse the table `[access]`. Raises WrongKey. `parse_rule` parses the rules."""
    if not isinstance(table, dict):
        raise WrongKey("access", "access must be a table: [access]")
    for key in table:
        if key not in _KEYS:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(_KEYS)}")
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
        raise WrongKey("rule", "write rules as [[access.rule]], with two brackets")
    attempts = table.get("attempts_per_minute", 10.0)
    if isinstance(attempts, bool) or not isinstance(attempts, int | float) or not attempts > 0:
        raise WrongKey("attempts_per_minute", f"attempts_per_minute is {attempts!r}; it must be more than 0")
    tokens = Tokens()
    if "tokens" in table:
        named = table["tokens"]
        if not isinstance(named, str) or not named:
            raise WrongKey("tokens", f"tokens must be the path of a file, not {named!r}")
        try:
            tokens = Tokens.load(Path(named))
        except ConfigError as error:
            raise WrongKey("tokens", str(error)) from None
    return AccessConfig(tuple(map(parse_rule, rules)), tokens, float(attempts))


def parse_rule(table: Mapping[str, object]) -> AccessRule:
    """Parse one table `[[access.rule]]`."""
    known = ("who", *Right)
    for key in table:
        if key not in known:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(known)}")
    who = _texts(table, "who")
    if not who:
        raise WrongKey("who", 'who must name somebody, such as ["certificate:meter-*", "token:dashboard"]')
    kinds = identity_kinds()
    for each in who:
        if each != ANYONE and each.partition(":")[0] not in kinds:
            choice = ", ".join(kinds)
            raise WrongKey("who", f"who: {each!r} is neither {ANYONE!r} nor one of {choice} with a name: token:shop")
    rights = {right: _texts(table, right) for right in Right}
    for right, patterns in rights.items():
        for pattern in patterns:
            try:
                validate_pattern(pattern)
            except ConfigError as error:
                raise WrongKey(right, f"{right}: {error}") from None
    if not any(rights.values()):
        raise WrongKey("who", f"the rule allows nothing; say what, with {', '.join(Right)}")
    return AccessRule(who, rights)


def _texts(table: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise WrongKey(key, f'{key} must be a list of texts, such as ["sensors/#"]')
    return tuple(found)


class Grants:
    """The rights of a peer, with cached decisions.

    >>> grants = Grants({Right.PUBLISH: ("sensors/#",), Right.SUBSCRIBE: ("sensors/#",)})
    >>> grants.may(Right.PUBLISH, "sensors/kitchen"), grants.may(Right.PUBLISH, "doors/front")
    (True, False)
    >>> grants.may(Right.SUBSCRIBE, "sensors/+/oven"), grants.may(Right.SUBSCRIBE, "#")
    (True, False)
    """

    __slots__ = ("_known", "_rights", "everything")

    def __init__(self, rights: Mapping[Right, tuple[str, ...]], *, everything: bool = False) -> None:
        self.everything = everything
        """Whether everything is allowed, so that no check is needed."""
        self._rights = rights
        self._known: dict[Right, dict[str, bool]] = {right: {} for right in Right}

    @property
    def nothing(self) -> bool:
        """Whether nothing is allowed."""
        return not self.everything and not any(self._rights.values())

    def may_at_all(self, right: Right) -> bool:
        """Whether a right exists for any topic."""
        return self.everything or bool(self._rights.get(right))

    def may(self, right: Right, topic: str) -> bool:
        """Whether a right exists for a topic. Results are cached."""
        if self.everything:
            return True
        known = self._known[right]
        allowed = known.get(topic)
        if allowed is None:
            match = _MATCH[right]
            allowed = any(match(pattern, topic) for pattern in self._rights.get(right, ()))
            if len(known) >= REMEMBERED:
                known.clear()
            known[topic] = allowed
        return allowed


EVERYTHING = Grants({}, everything=True)


class Access:
    """The rules in force."""

    def __init__(self, config: AccessConfig) -> None:
        self.config = config
        self._grants: dict[frozenset[str], Grants] = {}

    def grants(self, identities: tuple[str, ...], *, local: bool) -> Grants:
        """What a peer with these identities may do. `local` is set if only this machine can reach the listener."""
        rules = self.config.rules
        if local and not rules:
            return EVERYTHING
        key = frozenset(identities)
        found = self._grants.get(key)
        if found is None:
            rights: dict[Right, tuple[str, ...]] = {}
            for rule in rules:
                if rule.applies_to(identities):
                    for right, patterns in rule.rights.items():
                        rights[right] = (*rights.get(right, ()), *patterns)
            if len(self._grants) >= REMEMBERED:
                self._grants.clear()
            found = self._grants[key] = Grants(rights)
        return found
