"""The command line, as a program of its own."""

from __future__ import annotations

import sys

WIRELOOM = [sys.executable, "-m", "wireloom"]
