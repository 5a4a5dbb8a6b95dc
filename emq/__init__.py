"""EMQ: tens of thousands of queues, each consumed at no more than its own rate, in priority order, at least once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emq.app import App
    from emq.app.client import Client
    from emq.calls.dependencies import Depends
    from emq.calls.middleware import HandleNext, HandlerCall, Middleware, PublishCall, PublishNext
    from emq.errors import (
        ChangedMeanwhile,
        ClusterUnavailable,
        DatabaseUnavailable,
        EMQError,
        ForeignTree,
        GiveBack,
        HookFailed,
        HostConflict,
        InvalidMessage,
        InvalidPool,
        InvalidSettings,
        InvalidTopic,
        KeyDamaged,
        MessagesLost,
        NoDatabase,
        NotOwner,
        OutcomeUnknown,
        PartialFailure,
        QueueSealed,
        Reject,
        Retry,
        StillConsumed,
        StillNamed,
        StoreFull,
        StoreUnavailable,
        TaskRefused,
        TasksWaiting,
        TopicClosed,
        TopicExists,
        TopicFull,
        UnknownPool,
        UnknownTask,
        UnknownTopic,
        WrongState,
    )
    from emq.groups.receiver import Delivery
    from emq.message import Message
    from emq.observe.dead_letters import Selection
    from emq.producer.outcomes import Repeated
    from emq.settings import Settings
    from emq.storage.durability import Durability
    from emq.storage.environment import Environment
    from emq.topics.model import Kind, State, Topic, TopicOptions

__all__ = [
    "App",
    "ChangedMeanwhile",
    "Client",
    "ClusterUnavailable",
    "DatabaseUnavailable",
    "Delivery",
    "Depends",
    "Durability",
    "EMQError",
    "Environment",
    "ForeignTree",
    "GiveBack",
    "HandleNext",
    "HandlerCall",
    "HookFailed",
    "HostConflict",
    "InvalidMessage",
    "InvalidPool",
    "InvalidSettings",
    "InvalidTopic",
    "KeyDamaged",
    "Kind",
    "Message",
    "MessagesLost",
    "Middleware",
    "NoDatabase",
    "NotOwner",
    "OutcomeUnknown",
    "PartialFailure",
    "PublishCall",
    "PublishNext",
    "QueueSealed",
    "Reject",
    "Repeated",
    "Retry",
    "Selection",
    "Settings",
    "State",
    "StillConsumed",
    "StillNamed",
    "StoreFull",
    "StoreUnavailable",
    "TaskRefused",
    "TasksWaiting",
    "Topic",
    "TopicClosed",
    "TopicExists",
    "TopicFull",
    "TopicOptions",
    "UnknownPool",
    "UnknownTask",
    "UnknownTopic",
    "WrongState",
]

_HOMES = {
    "App": "emq.app",
    "ChangedMeanwhile": "emq.errors",
    "Client": "emq.app.client",
    "ClusterUnavailable": "emq.errors",
    "DatabaseUnavailable": "emq.errors",
    "Delivery": "emq.groups.receiver",
    "Depends": "emq.calls.dependencies",
    "Durability": "emq.storage.durability",
    "EMQError": "emq.errors",
    "Environment": "emq.storage.environment",
    "ForeignTree": "emq.errors",
    "GiveBack": "emq.errors",
    "HandleNext": "emq.calls.middleware",
    "HandlerCall": "emq.calls.middleware",
    "HookFailed": "emq.errors",
    "HostConflict": "emq.errors",
    "InvalidMessage": "emq.errors",
    "InvalidPool": "emq.errors",
    "InvalidSettings": "emq.errors",
    "InvalidTopic": "emq.errors",
    "KeyDamaged": "emq.errors",
    "Kind": "emq.topics.model",
    "Message": "emq.message",
    "MessagesLost": "emq.errors",
    "Middleware": "emq.calls.middleware",
    "NoDatabase": "emq.errors",
    "NotOwner": "emq.errors",
    "OutcomeUnknown": "emq.errors",
    "PartialFailure": "emq.errors",
    "PublishCall": "emq.calls.middleware",
    "PublishNext": "emq.calls.middleware",
    "QueueSealed": "emq.errors",
    "Reject": "emq.errors",
    "Repeated": "emq.producer.outcomes",
    "Retry": "emq.errors",
    "Selection": "emq.observe.dead_letters",
    "Settings": "emq.settings",
    "State": "emq.topics.model",
    "StillConsumed": "emq.errors",
    "StillNamed": "emq.errors",
    "StoreFull": "emq.errors",
    "StoreUnavailable": "emq.errors",
    "TaskRefused": "emq.errors",
    "TasksWaiting": "emq.errors",
    "Topic": "emq.topics.model",
    "TopicClosed": "emq.errors",
    "TopicExists": "emq.errors",
    "TopicFull": "emq.errors",
    "TopicOptions": "emq.topics.model",
    "UnknownPool": "emq.errors",
    "UnknownTask": "emq.errors",
    "UnknownTopic": "emq.errors",
    "WrongState": "emq.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without loading SQLAlchemy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
