"""yamp: a messaging protocol with events, and requests that can be followed and cancelled."""

from wireloom.formats.body_formats import body_format
from wireloom.protocols.yamp.protocol import YAMP, YampSettings

__all__ = ["YAMP", "YampSettings", "body_format"]
