"""The package of the API's clients."""

from __future__ import annotations

import emq_clients as api_client
from emq_push import client


def test_the_push_service_has_its_client_under_its_own_name() -> None:
    assert client.PushClient is api_client.PushClient
    assert client.AsyncPushClient is api_client.AsyncPushClient
    assert client.PushError is api_client.ApiError
