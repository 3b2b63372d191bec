"""Packages that may be missing, and the extra of Wireloom that brings each."""

from __future__ import annotations

_EXTRAS = {
    "uvloop": "speed",
    "isal": "speed",
    "websockets": "websocket",
    "aiohttp": "http",
    "cryptography": "mesh",
    "aioquic": "mesh",
    "lxml": "wolpertinger",
    "slixmpp": "wolpertinger",
    "msgpack": "formats",
    "cbor2": "formats",
    "bson": "formats",
    "google": "formats",
    "flatbuffers": "formats",
    "jsonschema": "formats",
    "opentelemetry": "tracing",
    "numpy": "hub",
    "numba": "hub",
    "obstore": "store",
    "zstandard": "store",
}


def how_to_install(package: str | None, extra: str | None = None) -> str:
    """What to say where a package is missing; `extra` is what the whole command needs, if that is known.

    >>> how_to_install("websockets.asyncio"), how_to_install("aiohttp", "hub")
    ("pip install 'wireloom[websocket]'", "pip install 'wireloom[hub]'")
    """
    found = extra or _EXTRAS.get((package or "").partition(".")[0], "spark")
    return f"pip install 'wireloom[{found}]'"
