"""Calls of language models under requests and tokens a minute: three models of two providers, chats before batches.

A provider counts the tokens of a call, which nobody knows before its end. So a call is charged an estimate at its start
and settled by what it really used: what was not used is given back, what was used beyond is debt, which later calls
wait for. The turns of a chat keep to one model as long as that has room (`keep=True`), for its prompt cache.

    python examples/scheduling/model_calls.py [--seconds 75] [--keep DIRECTORY] [--chart FILE.svg] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import drawing
import evidence
from evidence import Facts

from emq import App, Settings
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from emq_scheduling import Overloaded, Receipt, Run, Scheduling, Submission, Task
from emq_scheduling.pools import documents

HERE = Path(__file__).parent
CONVERSATIONS_PER_S = 0.8
TURNS = (2, 6)
BATCHES = 350
BATCH_AT = 0.2
"""The batch comes after this part of the time."""
MODELS = ("north-large", "north-small", "south-medium")
DRAIN_S = 300.0
WIDTH = 60


class Models:
    """What the providers do: they answer after a while, and say how many tokens it were."""

    def __init__(self) -> None:
        self._random = random.Random(5)
        self.last_429 = 0.0

    async def call(self, prompt: dict[str, Any], model: str) -> dict[str, int]:
        """Return the tokens of prompt and answer. Raises `Overloaded` as the providers answer 429, once in a while."""
        if model == "south-medium" and self._random.random() < 0.005:
            await asyncio.sleep(0.05)
            raise Overloaded("429 Too Many Requests", after_s=1.0)
        answer = int(self._random.lognormvariate(5.6, 0.7))
        await asyncio.sleep(0.2 + answer / 400)
        return {"prompt": prompt["tokens"], "answer": answer}


class Caller:
    """Chats that come and go, and a batch that comes all at once."""

    def __init__(self, scheduling: Scheduling, seconds: float) -> None:
        self.submitted = self.refused = 0
        self._scheduling = scheduling
        self._seconds = seconds
        self._random = random.Random(3)

    async def run(self) -> None:
        ends_at = time.monotonic() + self._seconds
        number = 0
        async with asyncio.TaskGroup() as callers:
            callers.create_task(self._batch())
            while time.monotonic() < ends_at:
                number += 1
                callers.create_task(self._chat(f"chat-{number}", ends_at))
                await asyncio.sleep(self._random.expovariate(CONVERSATIONS_PER_S))

    async def _batch(self) -> None:
        await asyncio.sleep(BATCH_AT * self._seconds)
        await self._submit([Submission("batch", self._prompt(900, 250)) for _ in range(BATCHES)])

    async def _chat(self, key: str, ends_at: float) -> None:
        """Submit the turns of a chat one after another; each prompt holds what was said before."""
        said = 150
        for _ in range(self._random.randint(*TURNS)):
            if time.monotonic() >= ends_at:
                return
            said += self._random.randrange(60, 260)
            # The caller knows the prompt, and expects an answer of 300 tokens.
            await self._submit(
                [Submission("chat", json.dumps({"tokens": said}), key=key, keep=True, costs={"tokens": said + 300})]
            )
            said += 300
            await asyncio.sleep(self._random.uniform(2.0, 5.0))

    async def _submit(self, tasks: list[Submission]) -> None:
        for outcome in await self._scheduling.submit_many("models", tasks):
            if isinstance(outcome, Receipt):
                self.submitted += 1
            elif isinstance(outcome, errors.TaskRefused):  # it could not be done in time
                self.refused += 1
            else:
                raise outcome

    def _prompt(self, mean: int, spread: int) -> str:
        return json.dumps({"tokens": max(100, int(self._random.gauss(mean, spread)))})


async def play(directory: Path, seconds: float, say: Any) -> tuple[Facts, Caller]:
    """Run chats and batch on an SQLite file in a directory; return what became of them, and who made them."""
    trail = Trail.open(directory / "trail", "models", SystemClock())
    app = App(options=Settings(store=f"sqlite:///{directory / 'emq.db'}"), trail=trail)
    scheduling = Scheduling(app)
    models = Models()

    @scheduling.performer("models")
    async def call(task: Task, run: Run) -> dict[str, int]:
        tokens = await models.call(json.loads(task.payload), run.resource)
        run.used(tokens=sum(tokens.values()))
        return tokens

    try:
        async with app:
            await scheduling.pools.put(documents.load((HERE / "model_pool.toml").read_text()))
            async with app.running():
                while (await scheduling.snapshot("models")) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                began_us = app.clock.now_us()
                caller = Caller(scheduling, seconds)
                telling = asyncio.create_task(tell(scheduling, say))
                await caller.run()
                await drained(scheduling, caller)
                telling.cancel()
            return await Facts.read(scheduling, app, "models", began_us), caller
    finally:
        trail.close()


async def drained(scheduling: Scheduling, caller: Caller) -> None:
    """Wait until all tasks are done."""
    ends_at = time.monotonic() + DRAIN_S
    while time.monotonic() < ends_at:
        snapshot = await scheduling.snapshot("models")
        if snapshot is not None and sum(kind.done for kind in snapshot.types.values()) >= caller.submitted:
            return
        await asyncio.sleep(1)
    raise SystemExit(f"calls still wait {DRAIN_S:g} s after the last one was submitted")


async def tell(scheduling: Scheduling, say: Any) -> None:
    """Say every five seconds what waits, and how much of each minute is used."""
    while True:
        await asyncio.sleep(5)
        snapshot = await scheduling.snapshot("models")
        if snapshot is not None:
            waiting = "  ".join(f"{name} {kind.waiting:>3}" for name, kind in snapshot.types.items())
            used = "  ".join(
                f"{name} {limit.used / limit.amount:.0%}"
                for name, resource in snapshot.resources.items()
                for limit in resource.limits
                if limit.name == "tokens" and limit.amount
            )
            say(f"waiting: {waiting}   tokens of the last minute: {used}")


def report(directory: Path, facts: Facts, caller: Caller) -> dict[str, Any]:
    """Return all figures, fit for JSON."""
    estimates = {kind: [t.costs["tokens"] for t in facts.tasks if t.type == kind] for kind in facts.pool.types}
    actuals = {kind: [_tokens(t) for t in facts.tasks if t.type == kind] for kind in facts.pool.types}
    return {
        "seconds": facts.seconds,
        "refused": caller.refused,
        "waits": evidence.waits_of(facts),
        "tokens": {
            kind: {"estimated": round(sum(estimates[kind])), "used": round(sum(actuals[kind]))} for kind in estimates
        },
        "more_than_estimated": sum(1 for task in facts.tasks if _tokens(task) > task.costs["tokens"]),
        "limits": [
            {
                "limit": f"{each.limit}/{each.per} of {each.resource}",
                "peak": round(each.peak, 1),
                "amount": each.amount,
                "most_debt": round(each.most_debt, 1),
                "seconds_over": each.over_s,
            }
            for each in facts.counted.limits
        ],
        "same_model": same_model(facts),
        "calls": dict(Counter(task.resource for task in facts.tasks)),
        "verdict": evidence.verdict_of(facts, evidence.proof_of(directory / "trail"), caller.submitted),
    }


def same_model(facts: Facts) -> dict[str, Any]:
    """Return how many turns of chats ran on the model of the turn before, and what chance would have given."""
    last: dict[str, str] = {}
    same = turns = 0
    for task in sorted(facts.tasks, key=lambda task: task.started_us):
        if task.type == "chat":
            if task.key in last:
                turns += 1
                same += last[task.key] == task.resource
            last[task.key] = task.resource
    calls = Counter(task.resource for task in facts.tasks if task.type == "chat")
    chance = sum((n / calls.total()) ** 2 for n in calls.values()) if calls else 0.0
    return {
        "turns": turns,
        "same": same,
        "part": round(same / turns, 3) if turns else 0.0,
        "by_chance": round(chance, 3),
    }


def _tokens(task: Any) -> float:
    actual = task.actual or {}
    return float(actual.get("tokens", task.costs["tokens"]))


def minutes(facts: Facts, resource: str) -> list[float]:
    """Return the tokens that a model or a provider used in the last minute, by second."""
    below = {name for name, each in facts.pool.resources.items() if resource in (name, each.parent)}
    used = facts.each_second(lambda task: "in" if task.resource in below else "out", "started_us", _tokens)
    each = used.get("in", [0.0] * facts.seconds)
    return [sum(each[max(0, second - 59) : second + 1]) for second in range(facts.seconds)]


def draw(facts: Facts, told: dict[str, Any], file: Path) -> None:
    """Draw the run."""
    ticks = {float(second): f"{second} s" for second in range(0, facts.seconds + 1, 15)}
    chart = drawing.Chart("Calls of three models of two providers", facts.seconds, ticks)
    started = facts.each_second(lambda task: task.type)
    kinds = list(facts.pool.types)
    top = max(2.0, max((sum(v) for v in zip(*started.values(), strict=True)), default=0.0))
    chart.stacked("Calls started a second", {kind: started.get(kind, []) for kind in kinds}, top)
    for provider in ("north", "south"):
        models = [model for model in MODELS if facts.pool.resources[model].parent == provider]
        amount = next(limit.amount for limit in facts.pool.resources[provider].limits if limit.name == "tokens")
        rows = {model: [tokens / 1000 for tokens in minutes(facts, model)] for model in models}
        title = f"Thousands of tokens in 60 s: {provider}"
        chart.stacked(title, rows, amount * 1.2 / 1000, [amount / 1000] * facts.seconds)
    waits = {kind: facts.p99_each_second(kind) for kind in kinds}
    chart.lines("p99 wait of what was submitted then", waits, {k: facts.pool.types[k].longest_wait_s for k in kinds})
    chart.text(list(evidence.verdict_lines(told["verdict"])))
    chart.write(file)


def lines(facts: Facts, told: dict[str, Any]) -> list[str]:
    """Return the report in words."""
    found = ["", f"{'limit':<36}{'most used':>11}{'amount':>11}{'most debt':>11}{'s over':>8}"]
    found += [
        f"{each['limit']:<36}{each['peak']:>11,.0f}{each['amount']:>11,.0f}{each['most_debt']:>11,.0f}"
        f"{each['seconds_over']:>8}"
        for each in told["limits"]
    ]
    found += ["", f"{'tokens in 60 s':<16}{'each second, as a part of the limit of its provider':<62}"]
    for model in MODELS:
        parent = facts.pool.resources[facts.pool.resources[model].parent or model]
        amount = next(limit.amount for limit in parent.limits if limit.name == "tokens")
        found.append(
            f"{model:<16}{drawing.sparkline(minutes(facts, model), WIDTH, amount)}  {told['calls'].get(model, 0)}"
        )
    found += ["", f"{'type':<8}{'calls':>7}{'p50':>9}{'p99':>9}{'longest':>9}{'target':>9}{'late':>6}   tokens"]
    for name, waits in told["waits"].items():
        tokens = told["tokens"][name]
        found.append(
            f"{name:<8}{waits['tasks']:>7,}{waits['p50_s']:>8.2f}s{waits['p99_s']:>8.2f}s{waits['longest_s']:>8.2f}s"
            f"{waits['target_s']:>8g}s{waits['late']:>6}   {tokens['estimated']:,} estimated, {tokens['used']:,} used"
        )
    same = told["same_model"]
    found += [
        f"{told['refused']} calls refused at once, since they would have been too late",
        f"{told['more_than_estimated']} calls used more than their estimate; the difference was charged at their end, "
        "as debt where the minute had no room",
        f"{same['same']} of {same['turns']} later turns of chats ({same['part']:.0%}) ran on the model of the turn "
        f"before; by chance {same['by_chance']:.0%}",
    ]
    return [*found, "", "proof, from the trail and the records:", *evidence.verdict_lines(told["verdict"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=75.0, help="for which chats come; then what waits is done")
    parser.add_argument("--keep", type=Path, help="a new directory for the SQLite file and the trail; else temporary")
    parser.add_argument("--chart", type=Path, default=Path("model-calls.svg"), help="where the chart is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    say = (lambda line: None) if args.json else (lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(prefix="emq-models-", ignore_cleanup_errors=True) as temporary:
        directory = args.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        facts, caller = asyncio.run(play(directory, args.seconds, say))
        told = report(directory, facts, caller)
    draw(facts, told, args.chart)
    if args.json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        print("\n".join([*lines(facts, told), "", f"chart: {args.chart}"]))
    return 0 if told["verdict"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
