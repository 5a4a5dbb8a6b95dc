"""The client of the push service's HTTP API, under the name by which code of the push service looks for it.

`emq.api_client` has it, beside that of pools. `PushError` is `emq.api_client.ApiError`.
"""

from emq.api_client.failures import ApiError as PushError
from emq.api_client.failures import ApiUnavailable
from emq.api_client.push import answers, operations
from emq.api_client.push.client import AsyncPushClient, PushClient

__all__ = ["ApiUnavailable", "AsyncPushClient", "PushClient", "PushError", "answers", "operations"]
