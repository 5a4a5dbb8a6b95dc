"""`emq backup`: whether a store and a database that come from copies fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import typer

from emq_cli import exit_codes, output
from emq_cli.entry import Room
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq_cli.fit import Fit

app = typer.Typer(cls=Room, help="Check copies of a store and a database.")


@command(app, "check")
async def check(session: Session) -> None:
    """Tell whether the store and the database fit together. Run it after you put copies in place, before a host starts.

    It compares the saved progress of every queue with what the store holds, and changes nothing. Exit code 1: messages
    are missing, the database does not know the store, or the store holds messages that the database does not know.

    Example: emq backup check
    """
    from emq_cli import fit
    from emq_cli.progress import Bar

    async with session.app() as opened:
        with Bar(session, "queues") as bar:
            found = await fit.look(opened, lambda done, total: bar.set(done, total=total))
    data = {"fits": found.fits, **msgspec.structs.asdict(found)}
    session.show(data, lambda: "\n".join(_lines(found)))
    if not found.fits:
        raise typer.Exit(exit_codes.FAILED)


def _lines(found: Fit) -> Iterator[str]:
    queues, behind = output.count(found.queues, "queue"), output.count(found.behind, "queue")
    if not found.is_known:
        named = f"identity {found.store}" if found.store else "no identity: no host has ever had it, or it is empty"
        yield (
            f"another store: the progress in the database belongs to the store of identity {found.expected}, and this "
            f"store has {named}. Hosts would deliver all that it holds from the first message on. Put the copy of "
            "the other store in place, or start the hosts if all of it may be delivered again."
        )
    if found.behind:
        yield (
            f"the store is the older copy: in {behind} of {found.queues:,}, it lacks at least "
            f"{output.count(found.missing, 'message')} that hosts had read. {found.lost:,} of them were not finished, "
            "and are lost with all that was published later. Hosts go back by themselves. A newer copy of the store "
            "would have them."
        )
    if found.orphans:
        messages = output.count(sum(orphan.messages for orphan in found.orphans), "message")
        topics = output.count(len({orphan.topic for orphan in found.orphans}), "topic")
        yield (
            f"unknown to the database: the store holds {messages} of {topics} that it does not know, or that it knows "
            "with fewer groups. The database is the older copy, or they were deleted after the copy of the store was "
            "made. Nobody consumes them until you adopt them; see: emq store orphans"
        )
    if found.fits:
        yield f"the copies fit together: hosts go on in {queues} from the saved progress."
    if found.is_known:
        yield (
            f"{output.count(found.waiting, 'message')} in queues with saved progress will be delivered, also those "
            "that were finished after the copy of the database was made."
        )
