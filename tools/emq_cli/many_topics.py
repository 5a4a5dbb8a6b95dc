"""Changes each topic that matches a pattern, and reports the failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from emq.runtime import errors, plurals
from emq_cli import exit_codes, output
from emq_cli.patterns import matched, none
from emq_cli.progress import Bar
from emq_cli.session import Session, fail

if TYPE_CHECKING:
    from emq.app import App

NAMED = 5
"""Most topics that the question names."""

TOLD = 20
"""Most failures that are printed one by one; JSON has all."""

OUT_OF_REACH = 3
"""If a server is out of reach for this many topics in a row, the command leaves the others as they are."""


async def change(
    session: Session, opened: App, pattern: str, what: str, done: str, one: Callable[[str], Awaitable[Any]], yes: bool
) -> None:
    """Ask, then call `one` for each topic that matches, also if it fails for some of them.

    Holds the names of the topics, not the topics.

    Args:
        what: the beginning of the question, such as "Pause".
        done: the beginning of the report, such as "paused".

    Raises:
        UnknownTopic: no topic matches.
        Exit: the change of a topic failed; all failures were printed.
    """
    names = await opened.catalog.names(pattern)
    if not names:
        raise errors.UnknownTopic(none(pattern, opened.place))
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    session.confirm(f"{what} {matched(len(names), pattern)} ({listed})?", yes)
    changed, failed = 0, dict[str, errors.EMQError]()
    unreachable = 0
    with Bar(session, done, len(names)) as bar:
        for name in names:
            try:
                await one(name)
            except errors.EMQError as exc:
                failed[name] = exc
                unreachable = unreachable + 1 if exit_codes.of(exc) == exit_codes.UNREACHABLE else 0
            else:
                changed, unreachable = changed + 1, 0
            bar.set(changed + len(failed))
            if unreachable == OUT_OF_REACH:
                break
    _tell(session, pattern, len(names), done, changed, failed)


def _tell(
    session: Session, pattern: str, topics: int, done: str, changed: int, failed: dict[str, errors.EMQError]
) -> None:
    left = topics - changed - len(failed)
    data = {"topics": topics, "changed": changed, "failed": {name: str(exc) for name, exc in failed.items()}}
    if changed or session.json:
        session.say(f"{done} {matched(changed, pattern)}", {**data, "left": left})
    if not failed:
        return
    for name, exc in [*failed.items()][:TOLD]:
        text = str(exc) if repr(name) in str(exc) else f"topic {name!r}: {exc}"
        session.err.print(output.plain(text), soft_wrap=True)
    if len(failed) > TOLD:
        session.err.print(f"... and {len(failed) - TOLD:,} more; --json tells all")
    codes = {exit_codes.of(exc) for exc in failed.values()}
    text = f"{output.count(len(failed), 'topic')} of {topics:,} failed"
    if left:
        stayed = f"{plurals.count(left, 'topic')} stayed unchanged"
        text += f"; {stayed}, since a server is out of reach; repeat the command later"
    fail(text, codes.pop() if len(codes) == 1 and not changed else exit_codes.FAILED)
