"""The hub: peers of all protocols talk to each other, and every message is kept."""

from wireloom.hub.config import HubConfig, default_config, load_config
from wireloom.hub.hub import Hub

__all__ = ["Hub", "HubConfig", "default_config", "load_config"]
