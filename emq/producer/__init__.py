"""Publishing: to the queues of log topics, to the slots of sorted ones, and to lanes for what is meant for later."""

from emq.producer.producer import Producer

__all__ = ["Producer"]
