"""The pytest plugin: the fixture `emq_harness`. Imports EMQ only in tests that use the fixture."""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from emq_testing.harness import Harness
    from emq_testing.record import Failure

FIXTURE = "emq_harness"

SHOWN = 3
"""Most failures of one reason that a report lists."""

_opened = pytest.StashKey["list[Harness]"]()


@pytest.fixture
def emq_harness(request: pytest.FixtureRequest) -> Callable[..., Harness]:
    """Open an app in virtual time: `async with emq_harness(app) as t: ...`; see `emq_testing.Harness`.

    Has the arguments of `Harness`. If the test fails, its report shows the errors of the handlers.
    """
    from emq_testing.harness import Harness

    made: list[Harness] = []
    request.node.stash[_opened] = made

    @functools.wraps(Harness)
    def make(*arguments: Any, **options: Any) -> Harness:
        made.append(Harness(*arguments, **options))
        return made[-1]

    return make


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test that uses the fixture, if no other plugin (pytest-asyncio, anyio) does."""
    if FIXTURE not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the errors of the handlers to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        for harness in item.stash.get(_opened, []):
            if harness.failures or harness.dead_letters:
                logged = "".join(text for title, text in report.sections if title.startswith("Captured"))
                report.sections.append(("EMQ: failed deliveries", _told(harness, logged)))
    return report


def _told(harness: Harness, logged: str) -> str:
    """Return the section of a report; a traceback that is `logged` in another section is not repeated."""
    from emq.dispatch import failure_place

    alike: dict[str, list[Failure]] = {}
    for failure in harness.failures:
        alike.setdefault(failure.reason, []).append(failure)
    lines = [f"delivered: {len(harness.delivered)}; attempts that failed: {len(harness.failures)}"]
    for failures in alike.values():
        lines += map(repr, failures[:SHOWN])
        if len(failures) > SHOWN:
            lines.append(f"... and {len(failures) - SHOWN} more of these")
        if (error := failures[0].error) is not None:
            steps = failure_place.of_handler(error.__traceback__)
            text = "".join(traceback.format_exception(type(error), error, steps)).rstrip()
            lines.append("the traceback is in the log above" if text in logged else text)
    lines += [f"dead letter {letter!r}" for letter in harness.dead_letters[:SHOWN]]
    return "\n".join(lines)
