"""Judges what the push service tells of its deliveries by what the receivers have answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def lies(deliveries: Iterable[Mapping[str, Any]], answers: Mapping[str, Sequence[int]], most: int) -> list[str]:
    """Return a line for each delivery whose state or number of attempts is not what its receiver saw.

    Args:
        deliveries: as the API lists them, once nothing is under way any more.
        answers: by message, the statuses that its one receiver has answered.
        most: attempts after which a message is dead.
    """
    found = []
    for each in deliveries:
        seen = answers.get(each["message"], ())
        taken = any(200 <= status < 300 for status in seen)
        wanted = "delivered" if taken else "dead" if len(seen) >= most else "pending"
        is_true = each["state"] == wanted and 1 <= each["attempts"] <= min(most, len(seen))
        if not is_true or (wanted == "dead" and each["attempts"] != most):
            found.append(f"{each['message']} is {each['state']} after {each['attempts']} attempts, answered {seen}")
    return found
