"""EMQ: tens of thousands of queues, each consumed at no more than its own rate, in priority order, at least once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emq.app import App
    from emq.app.client import Client
    from emq.calls.dependencies import Depends
    from emq.calls.middleware import HandleNext, HandlerCall, Middleware, PublishCall, PublishNext
    from emq.errors import EMQError, GiveBack, PartialFailure, Reject, Retry
    from emq.groups.receiver import Delivery
    from emq.inspect.dead_letters import Selection
    from emq.message import Message
    from emq.producer.outcomes import Repeated
    from emq.settings import Settings
    from emq.storage.durability import Durability
    from emq.storage.environment import Environment
    from emq.topics.model import Kind, State, Topic, TopicOptions

__all__ = [
    "App",
    "Client",
    "Durability",
    "EMQError",
    "Environment",
    "Delivery",
    "Depends",
    "GiveBack",
    "HandleNext",
    "HandlerCall",
    "Kind",
    "Message",
    "Middleware",
    "PartialFailure",
    "PublishCall",
    "PublishNext",
    "Reject",
    "Repeated",
    "Retry",
    "Selection",
    "Settings",
    "State",
    "Topic",
    "TopicOptions",
]

_HOMES = {
    "App": "emq.app",
    "Client": "emq.app.client",
    "Durability": "emq.storage.durability",
    "EMQError": "emq.errors",
    "Environment": "emq.storage.environment",
    "Delivery": "emq.groups.receiver",
    "Depends": "emq.calls.dependencies",
    "GiveBack": "emq.errors",
    "HandleNext": "emq.calls.middleware",
    "HandlerCall": "emq.calls.middleware",
    "Kind": "emq.topics.model",
    "Message": "emq.message",
    "Middleware": "emq.calls.middleware",
    "PartialFailure": "emq.errors",
    "PublishCall": "emq.calls.middleware",
    "PublishNext": "emq.calls.middleware",
    "Reject": "emq.errors",
    "Repeated": "emq.producer.outcomes",
    "Retry": "emq.errors",
    "Selection": "emq.inspect.dead_letters",
    "Settings": "emq.settings",
    "State": "emq.topics.model",
    "Topic": "emq.topics.model",
    "TopicOptions": "emq.topics.model",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without loading SQLAlchemy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
