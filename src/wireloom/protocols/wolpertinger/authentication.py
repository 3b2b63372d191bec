"""Trust: how two peers get from strangers (0) to a connection (1), encryption (2), a cluster (3) and a user (4).

Implements what the decisions say of the component `Authentication`. The conversation is two tables: `METHODS`, what
may be called at which level of trust, and `STEPS`, what a client calls, in order, to climb.

    client                                     server
      | -- EstablishConnection() -------------> |    -> a GUID, as string                 trust 1
      | -- KeyExchange(public key, iv) --------> |    -> public key; encrypted from here   trust 2
      | -- ClusterAuthGetToken() --------------> |    -> token
      | -- ClusterAuthVerify(proof) -----------> |    -> true                              trust 3
      | -- ClusterAuthRequestVerification(token) |
      | <------------- ClusterAuthVerify(proof)  |    the server proves itself as well
      | -- UserAuthGetToken() -----------------> |    -> token
      | -- UserAuthVerify(user, proof) --------> |    -> true                              trust 4

A proof is given only to peers that have proven themselves: else anybody could take a token from one member and have
another one answer it. What is wrong ends the connection, so that each guess costs a new key agreement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from wireloom.model import ConfigError
from wireloom.protocols.wolpertinger import keys, values
from wireloom.protocols.wolpertinger.keys import Cipher, KeyPair
from wireloom.protocols.wolpertinger.layer2 import RemoteMethodCall
from wireloom.protocols.wolpertinger.refusal import ErrorCode
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.values import Value

COMPONENT = "Authentication"
CONNECTED, ENCRYPTED, MEMBER, USER = 1, 2, 3, 4
_ENTROPY = 80
YES, NO = Value("boolean", True), Value("boolean", False)

Entropy = Callable[[int], bytes]
"""So many random bytes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows a call of `Authentication`."""

    value: Value | None = None
    error: ErrorCode | None = None
    silent: bool = False
    """No response at all."""
    reset: bool = False
    """The connection ends after the answer."""
    cipher: Cipher | None = None
    """In force from the next message on."""
    prove: str | None = None
    """Prove ourselves by calling `ClusterAuthVerify` with this; its outcome is the answer."""


@dataclass(slots=True)
class Authentication:
    """Both halves of one end: what the peer has shown, and what we show it."""

    settings: WolpertingerSettings
    entropy: Entropy
    trust: int = 0
    """How far we trust the peer."""
    standing: int = 0
    """How far the peer trusts us, as far as we know."""
    cluster_token: str | None = field(default=None, repr=False)
    """The token we gave the peer to prove that it is of the cluster; used once."""
    user_token: str | None = field(default=None, repr=False)
    user: str | None = None
    """Who the peer is, at trust 4."""
    pair: KeyPair | None = field(default=None, repr=False)
    iv: bytes = field(default=b"", repr=False)
    given: str = field(default="", repr=False)
    """The token the peer gave us."""

    # What the peer asks of us

    def answer(self, call: RemoteMethodCall, protected: bool) -> Outcome:
        """Act on a call of the component; `protected` if nobody can listen or change what passes."""
        method = METHODS.get(call.method)
        if method is None:
            return Outcome(error=ErrorCode.METHOD_NOT_FOUND)
        if self.trust < method.needs:
            return Outcome(error=ErrorCode.NOT_AUTHORISED)
        if tuple([each.type for each in call.parameters]) != method.parameters:
            return Outcome(error=ErrorCode.INVALID_PARAMETERS)
        if method.secret and not (protected or self.settings.insecure_trust):
            return Outcome(error=ErrorCode.NOT_AUTHORISED)
        return method.run(self, *[str(each.data) for each in call.parameters])

    def _establish(self) -> Outcome:
        self.trust = max(self.trust, CONNECTED)
        # The peer's resource in XMPP, where there is one; elsewhere a GUID takes its place.
        return Outcome(Value("string", str(UUID(bytes=self.entropy(16), version=4))))

    def _key_exchange(self, public: str, iv: str) -> Outcome:
        if self.trust >= ENCRYPTED:
            return Outcome(error=ErrorCode.REQUEST)
        try:
            pair = KeyPair.draw(self.entropy(_ENTROPY))
        except ConfigError:
            return Outcome(error=ErrorCode.ENCRYPTION)
        cipher = pair.agree(public, keys.from_base64(iv) or b"")
        if cipher is None:
            return Outcome(error=ErrorCode.INVALID_PARAMETERS)
        self.trust = ENCRYPTED
        return Outcome(Value("string", pair.public), cipher=cipher)

    def _cluster_token(self) -> Outcome:
        if not self.settings.cluster_key:
            return Outcome(error=ErrorCode.NOT_AUTHORISED)
        self.cluster_token = self.draw_token()
        return Outcome(Value("string", self.cluster_token))

    def _cluster_verify(self, proof: str) -> Outcome:
        token, self.cluster_token = self.cluster_token, None
        if token is None or not self.settings.cluster_key:
            return Outcome(error=ErrorCode.INVALID_PARAMETERS, reset=True)
        if not keys.is_proof(proof, keys.cluster_password(self.settings.cluster_key), token):
            return Outcome(NO, reset=True)
        self.trust = max(self.trust, MEMBER)
        return Outcome(YES)

    def _cluster_request(self, token: str) -> Outcome:
        if not keys.is_token(token) or not self.settings.cluster_key:
            return Outcome(error=ErrorCode.INVALID_PARAMETERS)
        return Outcome(prove=keys.prove(keys.cluster_password(self.settings.cluster_key), token))

    def _user_token(self) -> Outcome:
        self.user_token = self.draw_token()
        return Outcome(Value("string", self.user_token))

    def _user_verify(self, user: str, proof: str) -> Outcome:
        token, self.user_token = self.user_token, None
        if token is None:
            return Outcome(error=ErrorCode.INVALID_PARAMETERS, reset=True)
        names = {name.lower(): name for name in self.settings.users}
        name = names.get(user.lower())
        # An unknown user costs as much time as a wrong password.
        password = self.settings.users[name] if name is not None else self.draw_token()
        if not keys.is_proof(proof, password, token) or name is None:
            return Outcome(NO, reset=True)
        self.trust, self.user = USER, name
        return Outcome(YES)

    def _awarded(self, level: str) -> Outcome:
        """The peer tells how far it trusts us: good to know, and nothing follows from it."""
        if 0 <= int(level) <= USER:
            self.standing = int(level)
        return Outcome(silent=True)

    @property
    def identities(self) -> tuple[str, ...]:
        """What the peer has proved: the user's name, and every level of trust up to its own, the highest first."""
        levels = tuple(f"trust:{level}" for level in range(self.trust, 0, -1))
        return (f"user:{self.user}", *levels) if self.user else levels

    def draw_token(self) -> str:
        """32 random bytes in base64."""
        return keys.to_base64(self.entropy(keys.TOKEN_SIZE))

    # What we ask of the peer

    def _offer_key(self) -> tuple[Value, ...]:
        self.pair, self.iv = KeyPair.draw(self.entropy(_ENTROPY)), self.entropy(keys.BLOCK)
        return Value("string", self.pair.public), Value("string", keys.to_base64(self.iv))

    def take_key(self, value: Value | None) -> Cipher | None:
        """The cipher agreed on, from the peer's answer to our key; None when that is no key."""
        pair, self.pair = self.pair, None
        if pair is None or value is None or value.type != "string":
            return None
        cipher = pair.agree(str(value.data), self.iv)
        if cipher is not None:
            self.trust = max(self.trust, ENCRYPTED)
        return cipher

    def _take_token(self, value: Value | None) -> bool:
        self.given = str(value.data) if value is not None and value.type == "string" else ""
        return keys.is_token(self.given)

    def _accepted(self, value: Value | None) -> bool:
        return value == YES

    def _connected(self, value: Value | None) -> bool:
        """The answer is a GUID as string. Earlier versions of ours answered true."""
        connected = value == YES or (value is not None and value.type == "string" and values.is_guid(str(value.data)))
        if connected:
            self.trust = max(self.trust, CONNECTED)
        return connected

    def _both_proven(self, value: Value | None) -> bool:
        """The peer says that it has proven itself; what counts is that it did."""
        return value == YES and self.trust >= MEMBER

    def _prove_cluster(self) -> tuple[Value, ...]:
        return (Value("string", keys.prove(keys.cluster_password(self.settings.cluster_key), self.given)),)

    def _ask_proof(self) -> tuple[Value, ...]:
        self.cluster_token = self.draw_token()
        return (Value("string", self.cluster_token),)

    def _prove_user(self) -> tuple[Value, ...]:
        settings = self.settings
        return Value("string", settings.user), Value("string", keys.prove(settings.password, self.given))


@dataclass(frozen=True, slots=True)
class Method:
    """A method of `Authentication`: the trust it needs, its parameters, what it does."""

    needs: int
    parameters: tuple[str, ...]
    run: Callable[..., Outcome]
    secret: bool = False
    """Whether it must not be used where others could listen."""


METHODS: dict[str, Method] = {
    "EstablishConnection": Method(0, (), Authentication._establish),
    "KeyExchange": Method(CONNECTED, ("string", "string"), Authentication._key_exchange),
    "ClusterAuthGetToken": Method(ENCRYPTED, (), Authentication._cluster_token, secret=True),
    "ClusterAuthVerify": Method(ENCRYPTED, ("string",), Authentication._cluster_verify, secret=True),
    "ClusterAuthRequestVerification": Method(MEMBER, ("string",), Authentication._cluster_request, secret=True),
    "UserAuthGetToken": Method(MEMBER, (), Authentication._user_token, secret=True),
    "UserAuthVerify": Method(MEMBER, ("string", "string"), Authentication._user_verify, secret=True),
    "AwardTrustLevel": Method(0, ("int32",), Authentication._awarded),
}


def _nothing(_: Authentication) -> tuple[Value, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Step:
    """One call on a client's way up."""

    level: int
    method: str
    parameters: Callable[[Authentication], tuple[Value, ...]]
    accept: Callable[[Authentication, Value | None], object]
    """Takes the answer; falsy when it ends the attempt. Of the key exchange it is the cipher."""


STEPS: tuple[Step, ...] = (
    Step(CONNECTED, "EstablishConnection", _nothing, Authentication._connected),
    Step(ENCRYPTED, "KeyExchange", Authentication._offer_key, Authentication.take_key),
    Step(MEMBER, "ClusterAuthGetToken", _nothing, Authentication._take_token),
    Step(MEMBER, "ClusterAuthVerify", Authentication._prove_cluster, Authentication._accepted),
    Step(MEMBER, "ClusterAuthRequestVerification", Authentication._ask_proof, Authentication._both_proven),
    Step(USER, "UserAuthGetToken", _nothing, Authentication._take_token),
    Step(USER, "UserAuthVerify", Authentication._prove_user, Authentication._accepted),
)
