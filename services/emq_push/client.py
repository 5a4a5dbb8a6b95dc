"""The client of the push service's HTTP API, under the name by which code of the push service looks for it.

`emq_clients` has it, beside that of pools. `PushError` is `emq_clients.ApiError`.
"""

from emq_clients.failures import ApiError as PushError
from emq_clients.failures import ApiUnavailable
from emq_clients.push import answers, operations
from emq_clients.push.client import AsyncPushClient, PushClient

__all__ = ["ApiUnavailable", "AsyncPushClient", "PushClient", "PushError", "answers", "operations"]
