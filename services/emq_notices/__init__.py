"""Operational notices: what an operator should hear of becomes a message of the topic `emq.notices`.

`judging.py` finds troubles in what hosts tell of themselves. `opening.py` decides which troubles are news.
`watching.py` runs both on one host of the environment, and publishes. `notice.py` is a message.
"""

from emq_notices.notice import TOPIC, Notice, decode
from emq_notices.watching import watch

__all__ = ["TOPIC", "Notice", "decode", "watch"]
