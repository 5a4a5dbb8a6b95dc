"""The verdict on each promise, from three sources: the trail, the receivers' logs, and the messages still stored."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from emq_demo.leftovers import Leftovers
from emq_demo.receivers import Receipt
from emq_proof.proof import Proof, Wait

MAX_RATIO = 1.2
"""Largest factor by which the p99 wait of the others may grow (promise I: by 20 % at most)."""
NOISE_US = 10_000
"""Microseconds by which a p99 wait may always grow: the machine's other work causes a few milliseconds. Without
isolation the wait would grow to the age of the flood, which is seconds."""

MAX_OTHERS = 0.15
"""If other programs used more than this part of the processors in either half, they may have caused a higher p99
wait."""

_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Attributes:
    published: id to carrier, of every message whose publish returned.
    proof: the proof from the trail; it expects the ids that are still in the store.
    receipts: the receivers' logs.
    leftovers: the ids in the store after the host has stopped.
    calm, troubled: the waits of all airlines without trouble together, in each half.
    others: part of the processors that other programs took, 0 to 1; the higher value of the two halves.
    """

    published: Mapping[str, str]
    proof: Proof
    receipts: Sequence[Receipt]
    leftovers: Leftovers
    calm: Wait
    troubled: Wait
    others: float = 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The counts and the judgement. Where trail and receivers count the same thing, the worse count stands.

    Attributes:
        published: number of messages whose publish returned.
        delivered: number of messages to which a receiver responded with 2xx.
        still_queued: number of messages in the log queues or the lanes.
        dead: number of dead letters.
        lost (L): number of published messages without a 2xx, neither queued nor dead.
        duplicates (D): number of messages with a second 2xx, or with a 2xx and still in the store.
        cap_violations (Q): seconds in which a group or an airline started more than its limit, by the trail.
        priority_inversions (P): starts that overtook a ready message of higher priority, by the trail.
        evidence: what the verdict is about.
        ratio: p99 wait in the troubled half over p99 wait in the calm half, of the airlines without trouble.
        isolated (I): whether the waits are in bounds; None if they are not, but other programs may be the reason.
        disagreements: lines that say where trail, receivers and store contradict each other.
        broken: lines that say what broke a promise; empty if every promise held.
    """

    published: int
    delivered: int
    still_queued: int
    dead: int
    lost: int
    duplicates: int
    cap_violations: int
    priority_inversions: int
    evidence: Evidence
    ratio: float
    isolated: bool | None
    disagreements: tuple[str, ...]
    broken: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.broken

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON. Waits are in milliseconds; `wait_*_ms` are those of the troubled half."""
        counts = (
            *("published", "delivered", "still_queued", "dead"),
            *("lost", "duplicates", "cap_violations", "priority_inversions"),
        )
        calm, troubled = self.evidence.calm, self.evidence.troubled
        return {
            "ok": self.ok,
            "broken": list(self.broken),
            **{name: getattr(self, name) for name in counts},
            "wait_p50_ms": troubled.p50_us / 1e3,
            "wait_p99_ms": troubled.p99_us / 1e3,
            "wait_p50_calm_ms": calm.p50_us / 1e3,
            "wait_p99_calm_ms": calm.p99_us / 1e3,
            "wait_p99_ratio": round(self.ratio, 3),
            "isolated": self.isolated,
            "cpu_of_others": round(self.evidence.others, 3),
        }


def judge(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    proof, left = evidence.proof, evidence.leftovers
    successes = Counter(r.id for r in evidence.receipts if 200 <= r.status < 300)
    in_store = left.queued | left.delayed | left.dead
    answered = successes.keys()
    lost = evidence.published.keys() - answered - in_store
    twice = {id_ for id_, times in successes.items() if times > 1} | (answered & in_store)
    calm, troubled = evidence.calm, evidence.troubled
    ratio = troubled.p99_us / calm.p99_us if calm.p99_us > 0 else 0.0
    # Without a single measured wait there is no proof of isolation.
    measured = calm.count > 0 and troubled.count > 0
    isolated: bool | None = ratio <= MAX_RATIO or troubled.p99_us - calm.p99_us <= NOISE_US
    if not measured:
        isolated = False
    elif not isolated and evidence.others > MAX_OTHERS:
        isolated = None
    disagreements = _disagreements(evidence, answered, in_store)
    broken = [
        *_line("lost", max(len(lost), proof.lost.count), [*sorted(lost), *proof.lost.examples]),
        *_line(
            "delivered twice", max(len(twice), proof.duplicates.count), [*sorted(twice), *proof.duplicates.examples]
        ),
        *_line("seconds above a limit", proof.cap_violations.count, proof.cap_violations.examples),
        *_line("priority inversions", proof.priority_inversions.count, proof.priority_inversions.examples),
        *_line("broken key orders", proof.key_order.count, proof.key_order.examples),
        *_line("dead letters twice", proof.dead_twice.count, proof.dead_twice.examples),
        *_line("impossible deliveries", proof.deliveries.count, proof.deliveries.examples),
        *_line("impossible dead letters", proof.deaths.count, proof.deaths.examples),
        *_line("starts by a host that did not own the group", proof.owners.count, proof.owners.examples),
        *_line("offsets given to two messages", proof.offsets.count, proof.offsets.examples),
        *_line("starts out of time", proof.times.count, proof.times.examples),
        *((_isolation_text(calm, troubled, ratio),) if isolated is False else ()),
        *disagreements,
        *(f"the trail is void: {reason}" for reason in proof.void_reasons),
    ]
    return Verdict(
        published=len(evidence.published),
        delivered=len(answered),
        still_queued=len(left.queued | left.delayed),
        dead=len(left.dead),
        lost=max(len(lost), proof.lost.count),
        duplicates=max(len(twice), proof.duplicates.count),
        cap_violations=proof.cap_violations.count,
        priority_inversions=proof.priority_inversions.count,
        evidence=evidence,
        ratio=ratio,
        isolated=isolated,
        disagreements=disagreements,
        broken=tuple(broken),
    )


def _disagreements(evidence: Evidence, answered: Collection[str], in_store: frozenset[str]) -> tuple[str, ...]:
    """Compare the trail with publisher, receivers and store; return a line for each contradiction."""
    proof, left, published = evidence.proof, evidence.leftovers, evidence.published
    strangers = {*answered, *in_store} - published.keys()
    pairs = (
        ("published", "the publisher", len(published), "the trail", proof.published),
        ("delivered", "the receivers", len(answered), "the trail", proof.delivered),
        ("dead letters", "the store", len(left.dead), "the trail", proof.dead),
    )
    return (
        *(f"{what}: {one} counts {n:,}, {other} {m:,}" for what, one, n, other, m in pairs if n != m),
        *_line("messages that nobody published", len(strangers), sorted(strangers)),
    )


def _line(what: str, count: int, examples: Sequence[str]) -> list[str]:
    if not count:
        return []
    more = ", ..." if count > _SHOWN else ""
    return [f"{count:,} {what}: {', '.join(examples[:_SHOWN])}{more}"]


def _isolation_text(calm: Wait, troubled: Wait, ratio: float) -> str:
    if not (calm.count and troubled.count):
        return "isolation: no waits were measured; run it longer (--seconds)"
    return (
        f"isolation: the others' p99 wait went from {calm.p99_us / 1e3:.1f} to {troubled.p99_us / 1e3:.1f} ms "
        f"({ratio:.2f} times, {MAX_RATIO} allowed)"
    )
