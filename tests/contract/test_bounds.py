import pytest

from emq_stores.redis import server_patience
from emq_testing.contract.bounds import *  # noqa: F403


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server that has little of a busy machine take longer for 20 MB; hosts would claim again."""
    monkeypatch.setattr(server_patience, "LEAST_S", server_patience.MOST_S)
