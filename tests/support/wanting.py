"""What a test does that wants something that is not installed."""

from __future__ import annotations

import os

import pytest


def missing(reason: str) -> None:
    """Skip the test for want of something, or fail it where that must not be wanting."""
    if os.environ.get("EMQ_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
