"""The client of the push service's HTTP API, under its former name.

`emq_clients` has it, beside that of pools. `PushError` is `emq_clients.ApiError`.
"""

from emq_clients.failures import ApiError as PushError
from emq_clients.failures import ApiUnavailable
from emq_clients.push import answers, operations
from emq_clients.push.client import AsyncPushClient, PushClient

__all__ = ["ApiUnavailable", "AsyncPushClient", "PushClient", "PushError", "answers", "operations"]
