"""Which lists of fallbacks are refused, and how a message keeps one."""

from __future__ import annotations

import pytest

from emq.runtime import errors
from emq_scheduling import fallbacks
from emq_scheduling.fallbacks import Tries
from emq_scheduling.tasks import Carried, headers_of, with_tries
from support.fallback_host import POOL


@pytest.mark.parametrize(
    ("entries", "patience_s", "told"),
    [
        ("small", None, "tries 'small' must be a list"),
        ([], None, "tries has 0 entries; give 1 to 10"),
        (["large"] * 11, None, "tries has 11 entries"),
        (["large", 7], None, "tries: 7 is of type int; give text"),
        (["large", ""], None, "tries: '' names nothing; give TYPE, TYPE@RESOURCE or @RESOURCE"),
        (["large@", "small"], None, "tries: 'large@' names nothing"),
        (["small"], None, "tries begins with 'small', but the task is of type 'large'"),
        (["large@a", "@a"], None, "tries names '@a' twice"),
        (["large", "huge"], None, "tries: pool 'models' has no task type 'huge'; it has large, small"),
        (["large", "small@a"], None, "tries: no resource 'a' of pool 'models' takes type 'small'; these do: c"),
        (["large"], -1, "patience_s -1 must be 0 to"),
        (["large"], float("nan"), "patience_s nan must be a finite number"),
        (["large"], True, "patience_s True must be a finite number"),
        (None, 5, "patience_s is for tasks with tries"),
    ],
)
def test_a_wrong_list_is_refused_in_one_line(entries: object, patience_s: object, told: str) -> None:
    with pytest.raises((errors.InvalidMessage, errors.TaskRefused)) as found:
        fallbacks.check(POOL, "large", entries, patience_s)
    assert told in str(found.value)
    assert "\n" not in str(found.value)


def test_entries_without_a_type_are_of_the_tasks_own() -> None:
    assert fallbacks.check(POOL, "large", ["@a", "@b", "small"], 2) == Tries(("large@a", "large@b", "small"), 2.0)


@pytest.mark.parametrize(
    "tries",
    [
        Tries(()),
        Tries(("large",), at=1),
        Tries(("large",), at=-1),
        Tries(("small", "large")),
        Tries(("large", "@a")),
        Tries(("large",), former=-1),
        Tries(("large",), patience_s=float("inf")),
        Tries(("large",), since=float("nan")),
    ],
)
def test_what_a_stranger_wrote_into_a_message_is_refused(tries: Tries) -> None:
    with pytest.raises(ValueError, match="tries"):
        fallbacks.check_carried(tries, "large")


def test_a_message_remembers_how_far_its_task_came_and_all_else() -> None:
    tries = Tries(("large", "small"), 2.0)
    headers = headers_of(Carried(costs={"tokens": 3.0}, keys={"account": "a7"}, tries=tries))
    assert headers is not None
    moved = with_tries({**headers, "mine": "yes"}, tries.to(1, 3, 50.0))
    assert moved == {
        "mine": "yes",
        **(
            headers_of(
                Carried(
                    costs={"tokens": 3.0},
                    keys={"account": "a7"},
                    tries=Tries(("large", "small"), 2.0, at=1, since=50.0, former=3),
                )
            )
            or {}
        ),
    }
