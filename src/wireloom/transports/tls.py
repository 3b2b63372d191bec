"""TLS settings as people write them, and the contexts made from them. TLS 1.2 or newer, never less."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wireloom.model import ConfigError

NAME_KINDS = ("common", "dns", "email", "uri", "ip")
"""The common name, and the kinds of alternative names."""


@dataclass(frozen=True, slots=True)
class TLS:
    """Certificates for one end. Paths are PEM files.

    A client needs nothing when the server's certificate is signed by an authority the system trusts; `ca`
    names another authority, `certificate` and `key` show who the client is. A server needs
    `certificate` and `key`; with `ca` it asks clients for certificates signed by that authority and, with
    `require_client_certificate`, turns away those without one.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    password: str | None = None
    ca: str | Path | None = None
    require_client_certificate: bool = True
    verify: bool = True
    """Clients only: False takes any certificate. For tests."""
    server_hostname: str | None = None
    """Clients only: the name the certificate must bear, if not the host of the URL."""
    names: Sequence[str] = ("common", "dns")
    """Servers only: what in a client's certificate is a name of it, of `NAME_KINDS`. Authorities often check no other
    kind than these two."""

    def __post_init__(self) -> None:
        for kind in self.names if isinstance(self.names, list | tuple) else ("",):
            if kind not in NAME_KINDS:
                raise ConfigError(f"TLS names is {self.names!r}; it must be a list of {', '.join(NAME_KINDS)}")

    def client_context(self) -> ssl.SSLContext:
        """The context of a client."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if self.ca is not None:
            # Only this authority, not those the system trusts as well.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._trust(context)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """The context of a server."""
        if self.certificate is None:
            raise ConfigError(
                "a TLS server needs a certificate: --certificate FILE --key FILE of the commands, "
                "TLS(certificate=..., key=...) in Python"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        if self.ca is not None:
            self._trust(context)
            context.verify_mode = ssl.CERT_REQUIRED if self.require_client_certificate else ssl.CERT_OPTIONAL
        return context

    def renew(self, context: ssl.SSLContext) -> None:
        """Put these certificates into a server's context; authorities are added, never taken away."""
        self.server_context()  # complains before anything is changed
        self._load(context)
        if self.ca is not None:
            self._trust(context)

    def _trust(self, context: ssl.SSLContext) -> None:
        try:
            context.load_verify_locations(cafile=_readable("ca", self.ca))
        except ssl.SSLError as error:
            raise ConfigError(f"TLS ca {self.ca} does not load ({error.reason}): it must be PEM") from None

    def _load(self, context: ssl.SSLContext) -> None:
        certificate = _readable("certificate", self.certificate)
        if certificate is None:
            return
        key = _readable("key", self.key)
        try:
            # Without an answer of ours OpenSSL would ask on the terminal and block the loop.
            context.load_cert_chain(certificate, key, password=self.password or "")
        except ssl.SSLError as error:
            raise ConfigError(
                f"TLS certificate {certificate} and key {key or certificate} do not load ({error.reason}): "
                "both must be PEM, belong together, and the key needs its `password` if it has one"
            ) from None


def _readable(what: str, path: str | Path | None) -> str | None:
    if path is None:
        return None
    if not Path(path).is_file():
        raise ConfigError(f"TLS {what}: there is no file {path}")
    return str(path)


def client_context(tls: TLS | ssl.SSLContext | None) -> ssl.SSLContext:
    """The context a client uses, from whatever the caller gave."""
    return tls if isinstance(tls, ssl.SSLContext) else (tls or TLS()).client_context()


def server_context(tls: TLS | ssl.SSLContext | None) -> ssl.SSLContext:
    """The context a server uses, from whatever the caller gave."""
    return tls if isinstance(tls, ssl.SSLContext) else (tls or TLS()).server_context()
