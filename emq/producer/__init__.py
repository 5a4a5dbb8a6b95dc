"""Publishing: to the queues of log topics, to the slots of sorted topics, and to the lanes of delayed messages.

A topic is divided into groups. A group of a log topic has a *queue* for each priority, in the order of publishing. A
group of a sorted topic has a *slot*, a set ordered by time or by priority. Each group has a *lane* for messages that
wait for their time.
"""

from emq.producer.outcomes import Outcome
from emq.producer.outgoing import Outgoing
from emq.producer.producer import Producer

__all__ = ["Outcome", "Outgoing", "Producer"]
