"""TLS settings: mistakes are found when they are made, and named."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.certificates import Authority
from wireloom.model import ConfigError
from wireloom.transports import TLS
from wireloom.transports.tls import client_context, server_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def test_server_without_a_certificate(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        TLS(ca=authority.path).server_context()


def test_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"TLS certificate: there is no file nowhere\.pem"):
        TLS(certificate="nowhere.pem").client_context()


def test_key_of_another_certificate(authority: Authority) -> None:
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(ConfigError, match="belong together"):
        TLS(certificate=certificate, key=key).server_context()


def test_encrypted_key_needs_its_password_and_never_asks_on_the_terminal(authority: Authority) -> None:
    certificate, key = authority.issue("locked", password=b"secret")
    with pytest.raises(ConfigError, match="password"):
        TLS(certificate=certificate, key=key).server_context()
    assert TLS(certificate=certificate, key=key, password="secret").server_context()


def test_file_that_is_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "junk.pem"
    path.write_text("junk")
    with pytest.raises(ConfigError, match="PEM"):
        TLS(certificate=path).server_context()
    with pytest.raises(ConfigError, match="ca"):
        TLS(ca=path).client_context()


def test_old_versions_are_off(authority: Authority) -> None:
    certificate, key = authority.issue("modern")
    for context in (TLS().client_context(), TLS(certificate=certificate, key=key).server_context()):
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_context_of_ones_own_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    assert client_context(context) is context
    assert server_context(context) is context


def test_client_verifies_unless_told_otherwise() -> None:
    assert TLS().client_context().verify_mode == ssl.CERT_REQUIRED
    assert TLS(verify=False).client_context().verify_mode == ssl.CERT_NONE
