"""Optional packages: which extra of Wireloom installs which modules."""

from __future__ import annotations

MODULES = {
    "speed": ("uvloop", "isal"),
    "formats": ("msgpack", "cbor2", "bson", "google.protobuf", "flatbuffers", "jsonschema"),
    "websocket": ("websockets",),
    "http": ("aiohttp",),
    "mesh": ("cryptography", "aioquic"),
    "wolpertinger": ("lxml", "slixmpp"),
    "store": ("obstore", "zstandard"),
    "hub": ("numpy", "numba"),
    "tracing": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "spark": ("pyspark", "pyarrow", "pandas", "deltalake", "duckdb"),
}
"""The names of the extras are those in pyproject.toml."""
_EXTRAS = {module.partition(".")[0]: extra for extra, modules in MODULES.items() for module in modules}


def how_to_install(package: str | None, extra: str | None = None) -> str:
    """The command that installs a missing package. `extra` is the extra of the whole command, where that is known.

    >>> how_to_install("websockets.asyncio"), how_to_install("aiohttp", "hub")
    ("pip install 'wireloom[websocket]'", "pip install 'wireloom[hub]'")
    """
    found = extra or _EXTRAS.get((package or "").partition(".")[0], "spark")
    return f"pip install 'wireloom[{found}]'"
