"""Publishing: to the queues of log topics, to the slots of sorted topics, and to the lanes of delayed messages."""

from emq.producer.outcomes import Outcome
from emq.producer.outgoing import Outgoing
from emq.producer.producer import Producer

__all__ = ["Outcome", "Outgoing", "Producer"]
