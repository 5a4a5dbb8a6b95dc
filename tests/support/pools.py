"""A pool of SMS channels under two accounts, as the tests of the API and of the pages use it."""

from __future__ import annotations

from typing import Any

POOL: dict[str, Any] = {
    "name": "sms",
    "zone": "Europe/Berlin",
    "types": {
        "verification": {"priority": 0, "longest_wait_s": 10.0, "duration_s": 0.01},
        "notification": {"priority": 1, "longest_wait_s": 300.0, "duration_s": 0.01},
        "marketing": {"priority": 2, "duration_s": 0.01},
    },
    "resources": {
        "north": {"limits": [{"name": "requests", "amount": 60, "per": "second"}]},
        "north 1": {
            "parent": "north",
            "limits": [
                {"name": "requests", "amount": 40, "per": "second"},
                {"name": "open", "amount": 20, "per": "in_flight"},
            ],
            "takes": {"verification": {}, "notification": {}, "marketing": {}},
        },
        "north 2": {
            "parent": "north",
            "limits": [{"name": "requests", "amount": 40, "per": "second"}],
            "takes": {"notification": {}, "marketing": {}},
        },
        "south": {
            "limits": [
                {"name": "requests", "amount": 20, "per": "second"},
                {"name": "messages", "amount": 50_000, "per": "day"},
            ],
            "takes": {"marketing": {}},
            "price": 0.5,
        },
    },
    "tenants": {"shop": {"weight": 3.0}},
}
