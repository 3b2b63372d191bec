"""Settings for the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; kernels compile on their first call.
settings.register_profile(
    "wireloom", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("deep", parent=settings.get_profile("wireloom"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "wireloom"))
