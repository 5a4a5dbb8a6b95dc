"""The names that `import emq` offers."""

from __future__ import annotations

import inspect

import emq
from emq.runtime import errors


def test_every_error_that_a_user_may_catch_is_a_name_of_emq() -> None:
    all_errors = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert all_errors <= set(emq.__all__)
    for name in all_errors:
        assert getattr(emq, name) is getattr(errors, name)


def test_the_names_are_in_order_and_each_has_a_home() -> None:
    assert sorted(emq.__all__) == sorted(emq._HOMES)
