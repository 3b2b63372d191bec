"""A real XMPP server on loopback: prosody, with accounts, a certificate of its own, and nothing of the system's."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.certificates import Authority
from wireloom.transports import TLS

ACCOUNTS = {"alice": "wonderland", "bob": "builder"}
CONFIG = """
run_as_root = true
daemonize = false
pidfile = "{folder}/prosody.pid"
data_path = "{folder}/data"
plugin_paths = {{ "{folder}/plugins" }}
certificates = "{folder}"
modules_enabled = {{ "roster", "saslauth", "tls", "disco", "ping"{plugins} }}
modules_disabled = {{ "s2s", "s2s_auth_certs" }}
authentication = "internal_plain"
storage = "internal"
interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {port} }}
c2s_require_encryption = {encryption}
c2s_stanza_size_limit = {limit}
log = {{ info = "{folder}/prosody.log" }}
VirtualHost "localhost"
    ssl = {{ key = "{key}", certificate = "{certificate}" }}
"""
LIMITS = """
-- What newer versions of prosody say by themselves (XEP-0478).
local limit = module:get_option_number("c2s_stanza_size_limit")
module:hook("stream-features", function (event)
    event.features:tag("limits", { xmlns = "urn:xmpp:stream-limits:0" })
        :text_tag("max-bytes", string.format("%d", limit)):up()
end)
"""
MISSING = "prosody is not installed: apt-get install prosody"


def is_installed() -> bool:
    return shutil.which("prosody") is not None


@dataclass
class Prosody:
    folder: Path
    port: int
    ca: Path
    config: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def tls(self) -> TLS:
        return TLS(ca=self.ca)

    def url(self, user: str, path: str = "", **options: str) -> str:
        """The URL of an account, its password in a file."""
        given = {"password_file": str(self.folder / f"{user}.password"), **options}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"wolpertinger+xmpp://{user}@localhost:{self.port}/{path}?{query}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["prosody", "-F", "--config", str(self.config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        log = self.folder / "prosody.log"
        raise RuntimeError(f"prosody did not start: {log.read_text() if log.exists() else 'no log'}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


@contextmanager
def prosody(
    folder: Path, *, limit: int = 262144, encryption: bool = True, tells_limit: bool = False
) -> Iterator[Prosody]:
    """A server that runs; its files are in the folder. It keeps to its limit of stanzas whether it tells it or not."""
    authority = Authority(folder)
    certificate, key = authority.issue("localhost")
    accounts = folder / "data" / "localhost" / "accounts"
    accounts.mkdir(parents=True)
    for name, password in ACCOUNTS.items():
        (accounts / f"{name}.dat").write_text(f'return {{ ["password"] = "{password}"; }};\n')
        (folder / f"{name}.password").write_text(password + "\n")
    (folder / "plugins").mkdir()
    (folder / "plugins" / "mod_stream_limits.lua").write_text(LIMITS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "prosody.cfg.lua"
    config.write_text(
        CONFIG.format(
            folder=folder,
            port=port,
            key=key,
            certificate=certificate,
            limit=limit,
            encryption=str(encryption).lower(),
            plugins=', "stream_limits"' if tells_limit else "",
        )
    )
    server = Prosody(folder, port, authority.path, config)
    server.start()
    try:
        yield server
    finally:
        server.stop()
