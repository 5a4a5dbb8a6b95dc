"""An SMS platform: twelve channels under three accounts, codes before parcels before campaigns, for a day in a minute.

In the morning a campaign comes, at 20 times what all channels together send. Then a channel fails and comes back, one
is slow, one asks for less, and one fails for good. At the end: how well the channels were used, how long each type
waited, the proof that nothing was lost or done twice, and each limit counted again.

    python examples/scheduling/sms_platform.py [--seconds 60] [--keep DIRECTORY] [--chart FILE.svg] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import drawing
import evidence
import sms_traffic
from evidence import Facts

from emq import App, Settings
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from emq_scheduling import Pool, Run, Scheduling, Submission, Task
from emq_scheduling.pools import documents

HERE = Path(__file__).parent
TICK_S = 0.05
DRAIN_S = 120.0
WIDTH = 60


class Platform:
    """One day of the platform, on an SQLite file in a directory.

    Attributes:
        submitted, refused: tasks, by type.
        held_back: by second of the day, the channels that EMQ gave less than their limits, by what their answers said.
    """

    def __init__(self, directory: Path, seconds: float, say: Any) -> None:
        self.pool = documents.load((HERE / "sms_pool.toml").read_text())
        self.day = sms_traffic.Day(seconds, capacity(self.pool))
        self.gateways = sms_traffic.Gateways(self.day)
        self.trail = directory / "trail"
        self.submitted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.held_back: dict[int, set[str]] = {}
        self._store = f"sqlite:///{directory / 'emq.db'}"
        self._say = say

    async def run(self) -> Facts:
        """Live through the day, and until nothing waits any more."""
        trail = Trail.open(self.trail, "sms", SystemClock())
        app = App(options=Settings(store=self._store), trail=trail)
        scheduling = Scheduling(app)

        @scheduling.performer("sms")
        async def send(task: Task, run: Run) -> str:
            return await self.gateways.send(run.resource, task.payload)

        try:
            async with app:
                await scheduling.pools.put(self.pool)
                async with app.running():
                    while (await scheduling.snapshot("sms")) is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                    began_us = app.clock.now_us()
                    self.gateways.open()
                    await self._submit_for_a_day(scheduling)
                    await self._drain(scheduling)
                return await Facts.read(scheduling, app, "sms", began_us)
        finally:
            trail.close()

    async def _submit_for_a_day(self, scheduling: Scheduling) -> None:
        until = said = 0.0
        while until < self.day.seconds:
            await asyncio.sleep(TICK_S)
            since, until = until, min(self.gateways.elapsed_s, self.day.seconds)
            tasks = [
                Submission(kind, payload)
                for kind in self.pool.types
                for payload in self.day.payloads(kind, self.day.arrivals(kind, since, until - since))
            ]
            for task, outcome in zip(tasks, await scheduling.submit_many("sms", tasks), strict=True):
                refused = isinstance(outcome, errors.EMQError)
                (self.refused if refused else self.submitted)[task.type] += 1
            if until >= said + 1:
                said = until
                await self._tell(scheduling)

    async def _drain(self, scheduling: Scheduling) -> None:
        ends_at = time.monotonic() + DRAIN_S
        while time.monotonic() < ends_at:
            snapshot = await scheduling.snapshot("sms")
            assert snapshot is not None
            if sum(kind.done for kind in snapshot.types.values()) >= self.submitted.total():
                return
            await self._tell(scheduling)
            await asyncio.sleep(1)
        raise SystemExit(f"tasks still wait {DRAIN_S:g} s after the end of the day; is the machine very busy?")

    async def _tell(self, scheduling: Scheduling) -> None:
        snapshot = await scheduling.snapshot("sms")
        assert snapshot is not None
        hour = self.day.hour(self.gateways.elapsed_s)
        clock = f"{int(hour):02}:{int(hour % 1 * 60):02}" if hour < 24 else "after"
        waiting = "  ".join(f"{name} {kind.waiting:>5}" for name, kind in snapshot.types.items())
        closed = ", ".join(snapshot.state.closed) or "-"
        self.held_back[int(self.gateways.elapsed_s)] = {*snapshot.state.closed, *snapshot.state.factors}
        self._say(f"{clock}  sent {sum(snapshot.state.started.values()):>4}/s  waiting: {waiting}  closed: {closed}")


def capacity(pool: Pool) -> float:
    """Return the messages a second that accounts and channels let through, of all types together."""
    return possible(pool, set(), {name: _per_s(pool, name) for name in pool.resources})


def possible(pool: Pool, bad: set[str], sent: dict[str, float]) -> float:
    """Return how many messages could have been sent in a second with a backlog of marketing.

    Args:
        bad: channels that could send no more than they did.
        sent: what each channel sent; those that take no marketing could not have sent more either.
    """
    of_accounts: dict[str, float] = defaultdict(float)
    for name, resource in pool.resources.items():
        if resource.parent is not None:
            could = "marketing" in resource.takes and name not in bad
            of_accounts[resource.parent] += _per_s(pool, name) if could else sent.get(name, 0.0)
    return sum(min(could, _per_s(pool, account)) for account, could in of_accounts.items())


def _per_s(pool: Pool, name: str) -> float:
    return next(limit.amount for limit in pool.resources[name].limits if limit.per == "second")


def report(platform: Platform, facts: Facts) -> dict[str, Any]:
    """Return all figures, fit for JSON."""
    pool, day = platform.pool, platform.day
    starts = facts.each_second(lambda each: each.resource)
    backlog = facts.waiting_throughout("marketing")
    busy = [second for second in range(facts.seconds) if backlog[second]]
    sent = in_order = not_held_back = 0.0
    for second in busy:
        of_channels = {name: rows[second] for name, rows in starts.items()}
        bad = day.in_trouble(second - facts.offset_s)
        sent += sum(of_channels.values())
        in_order += possible(pool, bad, of_channels)
        told = {channel for s in (second - 1, second) for channel in platform.held_back.get(s, ())}
        not_held_back += possible(pool, bad | told, of_channels)
    channels = {}
    for name, resource in pool.resources.items():
        if resource.takes:
            limit = _per_s(pool, name)
            of_channel = starts.get(name, [0.0] * facts.seconds)
            channels[name] = {
                "account": resource.parent,
                "limit_per_s": limit,
                "sent": sum(1 for each in facts.tasks if each.resource == name),
                "not_sent": sum(1 for each in facts.attempts if each.resource == name and each.outcome != "done"),
                "used_with_backlog": round(_part(sum(of_channel[s] for s in busy), limit * len(busy)), 4),
                "used_each_second": [round(count / limit, 3) for count in of_channel],
            }
    return {
        "seconds": facts.seconds,
        "capacity_per_s": capacity(pool),
        "flood_per_s": sms_traffic.FLOOD_TIMES * capacity(pool),
        "submitted": dict(platform.submitted),
        "refused": dict(platform.refused),
        "seconds_with_backlog": len(busy),
        "utilisation": round(_part(sent, not_held_back), 4),
        "utilisation_with_recovering": round(_part(sent, in_order), 4),
        "waits": evidence.waits_of(facts),
        "channels": channels,
        "verdict": evidence.verdict_of(facts, evidence.proof_of(platform.trail), platform.submitted.total()),
    }


def _part(value: float, of: float) -> float:
    return value / of if of else 0.0


def draw(platform: Platform, facts: Facts, told: dict[str, Any], file: Path) -> None:
    """Draw the day."""
    per_hour = platform.day.seconds / 24

    def at(hour: float) -> float:
        return facts.offset_s + hour * per_hour

    ticks = {at(hour): f"{hour:02}:00" for hour in range(0, 25, 3)}
    flood = (at(sms_traffic.FLOOD_AT), at(sms_traffic.FLOOD_AT + sms_traffic.FLOOD_HOURS), "flood")
    troubles = [(t.channel, at(t.since), at(t.until)) for t in sms_traffic.TROUBLES]
    chart = drawing.Chart("An SMS platform's day: 12 channels, 3 accounts", facts.seconds, ticks, [flood])
    kinds = list(platform.pool.types)
    top = told["capacity_per_s"] * 1.2
    came = facts.each_second(lambda each: each.type, "submitted_us")
    sent = facts.each_second(lambda each: each.type, "ended_us")
    flooded = f"the campaign: {told['flood_per_s']:,.0f} a second"
    chart.stacked("Submitted a second", {kind: came.get(kind, []) for kind in kinds}, top, above=flooded)
    chart.stacked("Sent a second", {kind: sent.get(kind, []) for kind in kinds}, top)
    waits = {kind: facts.p99_each_second(kind) for kind in kinds}
    targets = {kind: platform.pool.types[kind].longest_wait_s for kind in kinds}
    chart.lines("p99 wait of what was submitted then (dashed: targets)", waits, targets)
    strips = {name: channel["used_each_second"] for name, channel in told["channels"].items()}
    chart.strips("Part of each channel's limit that was used (framed: in trouble)", strips, troubles)
    chart.text(list(evidence.verdict_lines(told["verdict"])))
    chart.write(file)


def lines(told: dict[str, Any]) -> list[str]:
    """Return the report in words."""
    found = ["", f"{'channel':<15}{'account':<9}{'limit':>6}{'sent':>7}{'moved on':>10}{'used':>7}   each second"]
    for name, channel in told["channels"].items():
        strip = drawing.sparkline(channel["used_each_second"], WIDTH, 1.0)
        found.append(
            f"{name:<15}{channel['account']:<9}{channel['limit_per_s']:>4.0f}/s{channel['sent']:>7,}"
            f"{channel['not_sent']:>10,}{channel['used_with_backlog']:>7.0%}   {strip}"
        )
    found += [
        f"used: part of its limit in the {told['seconds_with_backlog']} s in which marketing waited throughout; an "
        "account's limit binds before its channels'",
        f"utilisation in these seconds: {told['utilisation']:.1%} of what accounts and channels could send, without "
        "channels that were held back",
        f"  {told['utilisation_with_recovering']:.1%} if a channel that comes back counts with its whole limit at once",
        "",
        f"{'type':<14}{'sent':>7}{'refused':>9}{'p50':>9}{'p99':>9}{'longest':>9}{'target':>9}{'late':>6}",
    ]
    for name, waits in told["waits"].items():
        found.append(
            f"{name:<14}{waits['tasks']:>7,}{told['refused'].get(name, 0):>9,}{waits['p50_s']:>8.2f}s"
            f"{waits['p99_s']:>8.2f}s{waits['longest_s']:>8.2f}s{waits['target_s']:>8g}s{waits['late']:>6,}"
        )
    return [*found, "", "proof, from the trail and the records:", *evidence.verdict_lines(told["verdict"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="that the day takes; then what waits is sent")
    parser.add_argument("--keep", type=Path, help="a new directory for the SQLite file and the trail; else temporary")
    parser.add_argument("--chart", type=Path, default=Path("sms-platform.svg"), help="where the chart is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    say = (lambda line: None) if args.json else (lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(prefix="emq-sms-", ignore_cleanup_errors=True) as temporary:
        directory = args.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        platform = Platform(directory, args.seconds, say)
        facts = asyncio.run(platform.run())
        told = report(platform, facts)
    draw(platform, facts, told, args.chart)
    if args.json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        print("\n".join([*lines(told), "", f"chart: {args.chart}"]))
    return 0 if told["verdict"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
