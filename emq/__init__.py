"""EMQ: tens of thousands of queues, each consumed at no more than its own rate, in priority order, at least once."""

from emq.app import App
from emq.errors import EMQError, PartialFailure, Reject, Retry
from emq.message import Message
from emq.model import Environment, State, Topic, TopicOptions
from emq.settings import Settings
from emq.storage import Durability

__all__ = [
    "App",
    "Durability",
    "EMQError",
    "Environment",
    "Message",
    "PartialFailure",
    "Reject",
    "Retry",
    "Settings",
    "State",
    "Topic",
    "TopicOptions",
]
