"""`emq drain` and `emq weight`: give a host an operator's order, and wait until its groups have moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from emq.runtime import errors, plurals
from emq_cli import times
from emq_cli.arguments import Yes
from emq_cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from emq.allocation.records import Order
    from emq_cli.moves import Moves

_Host = Annotated[
    str, typer.Argument(metavar="HOST", help="The host's name, as `emq hosts` shows it.", show_default=False)
]
_Force = Annotated[bool, typer.Option("--force", help="Also order it for a host that does not run yet.")]
_Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the groups have moved.")]
_Timeout = Annotated[float, typer.Option(parser=times.spans(0.1), metavar="SPAN", help="Longest wait for the groups.")]


async def drain(
    session: Session,
    host: _Host,
    undo: Annotated[bool, typer.Option("--undo", help="Let the host have groups again.")] = False,
    force: _Force = False,
    wait: _Wait = True,
    timeout: _Timeout = 10.0,
    yes: Yes = False,
) -> None:
    """Move all groups of a host to the others. The host keeps running, without work.

    The order is kept under the host's name, also while the host does not run, until --undo. Set host_name for such a
    host: without it, a host has a new name after each start. Exits with 1 if the groups have not moved in time; the
    order stays.

    Example: emq drain web-3
    """

    def change(order: Order) -> Order:
        return msgspec.structs.replace(order, drain=not undo)

    what = f"{host} gets groups again" if undo else f"{host} gets no groups"
    await _give(session, host, change, what, force=force, wait=wait, timeout_s=timeout, yes=yes)


async def weight(
    session: Session,
    host: _Host,
    weight: Annotated[
        float | None,
        typer.Argument(
            metavar="W", min=0, max=1000, help="The host's share of the groups, compared with the others'; 0: none."
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to the host's own setting `weight`.")] = False,
    force: _Force = False,
    wait: _Wait = True,
    timeout: _Timeout = 10.0,
    yes: Yes = False,
) -> None:
    """Change a host's share of the groups while it runs: weight 2 gives it twice as much as a host with weight 1.

    The order is kept under the host's name, also while the host does not run, until --reset. Exits with 1 if the groups
    have not moved in time; the order stays.

    Example: emq weight web-3 2
    """
    if (weight is None) != reset:
        raise typer.BadParameter("give either a weight or --reset", param_hint="W")

    def change(order: Order) -> Order:
        return msgspec.structs.replace(order, weight=weight)

    what = f"{host} gets {'the weight of its own setting' if weight is None else f'weight {weight:g}'}"
    await _give(session, host, change, what, force=force, wait=wait, timeout_s=timeout, yes=yes)


async def _give(
    session: Session,
    host: str,
    change: Callable[[Order], Order],
    what: str,
    *,
    force: bool,
    wait: bool,
    timeout_s: float,
    yes: bool,
) -> None:
    from emq.allocation.records import Order
    from emq_cli import cluster, operator_orders
    from emq_cli.moves import Moves

    known = await cluster.known(session)
    async with cluster.tree_of(session) as tree:
        moves = await Moves.of(tree, session.settings.environment, known)
        before = moves.before
        if host not in before.members.keys() | before.orders.keys() and not force:
            raise errors.EMQError(_unknown(host, [*before.hosts]))
        order = change(before.orders.get(host, Order()))
        if moves.would_leave_nobody(host, order):
            session.confirm(
                f"No other host with a weight is left: nobody would consume the groups of {host}. Do it all the same?",
                yes,
            )
        await operator_orders.give(tree, session.settings.environment, host, change)
        there = host in before.members
        waits = wait and there and not known.trouble
        left = await _settle(session, moves, host, timeout_s) if waits else None
    if left:
        raise errors.EMQError(
            f"{what}: ordered, but {plurals.count(left, 'move')} {plurals.are(left)} still under way after "
            f"{timeout_s:g} s; see: emq hosts"
        )
    if waits:
        what += moves.in_words()
    elif not there:
        what += "; this host does not run now, the order waits for it"
    elif known.trouble:
        what += f"; nothing is planned while the database is out of reach: {known.trouble}"
    amounts = moves.amounts()
    data = {
        "host": host,
        "drain": order.drain,
        "weight": order.weight,
        "waited": waits,
        "moved_to": {to: amount.groups for to, amount in amounts.items() if amount.groups},
        "buckets_moved_to": {to: amount.buckets for to, amount in amounts.items() if amount.buckets},
    }
    session.say(what, data)


async def _settle(session: Session, moves: Moves, host: str, timeout_s: float) -> int:
    """Wait until everything has moved, and show the progress; return the number of moves still under way."""
    if not session.err.is_terminal or session.json:
        return await moves.settle(host, timeout_s, lambda left: None)
    with session.err.status("asking the leader for a plan") as status:
        return await moves.settle(host, timeout_s, lambda left: status.update(f"{left} still to move"))


def _unknown(host: str, names: list[str]) -> str:
    from emq.runtime.inputs import alike

    hint = alike(host, names) or "."
    return f"the cluster has no host {host!r}{hint} See: emq hosts. Add --force for a host that starts later"
