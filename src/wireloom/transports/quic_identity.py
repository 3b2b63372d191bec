"""Client certificates over QUIC: asked for by a server, checked against its authority, and the names in them.

aioquic asks for a certificate, and checks that the client has its key, but leaves the rest to its caller: whether
there is one at all, who signed it, when and for what it is valid. Until that is settled a connection has no owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aioquic import tls
from aioquic.quic.connection import QuicConnection
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wireloom.transports.base import TLSInfo
from wireloom.transports.tls import TLS

VERSION, CIPHER = "TLSv1.3", "QUIC"
_KINDS: Mapping[type[x509.GeneralName], str] = {
    x509.DNSName: "dns",
    x509.RFC822Name: "email",
    x509.UniformResourceIdentifier: "uri",
    x509.IPAddress: "ip",
}


class NotAdmitted(Exception):
    """The client has no certificate, or none that counts; the text says why."""


def ask_for_certificate(quic: QuicConnection) -> None:
    """Let a server's connection that has seen no packet yet ask its client for a certificate."""
    initialize = quic._initialize

    def and_ask(peer_cid: bytes) -> None:
        initialize(peer_cid)
        quic.tls._request_client_certificate = True

    quic._initialize = and_ask  # type: ignore[method-assign]


def client_of(quic: QuicConnection, settings: TLS) -> TLSInfo:
    """Who a client is, after the handshake; NotAdmitted if it may not stay."""
    certificate = quic.tls._peer_certificate
    if certificate is None:
        if settings.require_client_certificate:
            raise NotAdmitted("a certificate is required")
        return TLSInfo(VERSION, CIPHER)
    try:
        tls.verify_certificate(certificate, quic.tls._peer_certificate_chain, cafile=str(settings.ca))
        names = _names(certificate, settings.names)
        purposes = _purposes(certificate)
    except tls.Alert as alert:
        raise NotAdmitted(str(alert) or "the certificate is not trusted") from None
    except ValueError:
        raise NotAdmitted("the certificate cannot be read") from None
    if purposes is not None and ExtendedKeyUsageOID.CLIENT_AUTH not in purposes:
        raise NotAdmitted("the certificate is not for clients")
    return TLSInfo(VERSION, CIPHER, certificate.public_bytes(Encoding.DER), names[0] if names else None, names)


def _names(certificate: x509.Certificate, kinds: Collection[str]) -> tuple[str, ...]:
    """The common name, then the alternative ones of these kinds."""
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) if "common" in kinds else ()
    names = [str(each.value) for each in common]
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(names)
    others = [str(each.value) for each in alternative if _KINDS.get(type(each)) in kinds]
    return tuple(dict.fromkeys((*names, *others)))


def _purposes(certificate: x509.Certificate) -> x509.ExtendedKeyUsage | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
