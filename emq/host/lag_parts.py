"""The parts of the lag: the things that unfinished messages wait for."""

from __future__ import annotations

import enum


class Part(enum.StrEnum):
    """A part of the lag, named for the thing that its messages wait for; each message counts in one part."""

    READY = "ready"
    """Nothing: it may start now."""
    HELD_BY_RATE = "held_by_rate"
    """Its group has used its starts of this second."""
    HELD_BY_KEY = "held_by_key"
    """Another message of its key runs, or its key moves between groups."""
    HELD_BY_ROOM = "held_by_room"
    """Its topic has no room in flight, or no consumer asks its receiver for more."""
    PARKED = "parked"
    """Its topic is paused, has no handler here, or its handler has closed the topic on this host for a while."""
    DELAYED = "delayed"
    """Its time has not come: delayed messages, retries, schedules."""
    DEAD = "dead"
    """It is a dead letter."""
