"""Slots of sorted topics on sorted sets, in the layout of the published RMQ (see `emq_stores.redis.keys`).

One script call serves many slots, with a few commands of many arguments for each slot. This module sorts the requests
by slot, and puts the answers back in the order of the requests. A member that is its own body costs the server about a
microsecond for each step. Members with bodies apart, and members that fail, cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.storage.answers import Failure
from emq.storage.durability import Durability
from emq.storage.slot_store import (
    PAGE_BYTES,
    DeadMember,
    Recover,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotSettle,
    SlotState,
    Waiting,
    check_scores,
)
from emq_stores.redis import slot_requests
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import EVERY_KIND, STORE, SlotKeys
from emq_stores.redis.refusals import not_owner
from emq_stores.redis.spreading import each_part, raise_if_none_was_served

MEMBERS = 2_000
"""Most members that one script call adds, claims or acknowledges; a call then takes a few milliseconds."""

SINGLE_MEMBERS = 500
"""Most members in a call that works member by member: retries, deaths, roll-backs, verdicts of administrators."""

SLOTS = 500
"""Most slots in one call that claims, rolls back or inspects."""

PAGE = 1_000
"""Most members in a page, whatever the caller's limit."""

T = TypeVar("T")


class RedisSorted:
    """See `emq.storage.slot_store.SortedStore`. Atomic per script call; the store sends a large call as several."""

    def __init__(
        self, server: Scripts, environment: str, channel: str, place: Callable[[str], int] = lambda _: 0
    ) -> None:
        """
        Args:
            environment: "online" has the published key names; in another environment, its name precedes the topic's.
            channel: the channel on which this instance hears of armed slots.
            place: returns the place of a slot's store key; one script call never serves slots of different places.
        """
        self._server = server
        self._environment = environment
        self._channel = channel
        self._place = place
        self.clock: Clock = SystemClock()

    async def add(
        self, adds: Sequence[SlotAdd], durability: Durability = Durability.ACCEPTED
    ) -> list[bool | errors.QueueSealed | errors.TopicFull]:
        """See `SortedStore.add`; an add that its topic's fold refuses gets `InvalidMessage`.

        The store may split a large call into several script calls. If some of these fail, their adds get the error as
        their result. The method raises the error only if all of them fail. The same holds for the other methods.
        """
        check_scores(adds)
        answers: list[Any] = [True] * len(adds)

        async def bare(part: Sequence[slot_requests.Group]) -> None:
            place(part, await self._run("slot_add", part, _KEYS_OF_ADD, _bounded, durability=durability))

        async def apart(part: Sequence[slot_requests.Group]) -> None:
            place(part, await self._run("slot_merge", part, _KEYS_OF_MERGE, _folding, durability=durability))

        def place(part: Sequence[slot_requests.Group], replies: Sequence[Any]) -> None:
            for group, reply in zip(part, replies, strict=True):
                if isinstance(reply, bytes):
                    slot_requests.place_add_answers(adds, group, reply, [], answers)
                elif isinstance(reply, list):
                    slot_requests.place_add_answers(adds, group, reply[0], reply[1:], answers)

        for start in range(0, len(adds), MEMBERS):
            groups = slot_requests.group_adds(adds, start, start + MEMBERS)
            bares, aparts = [g for g in groups if not g.slot.apart], [g for g in groups if g.slot.apart]
            await each_part(self._together(bares, lambda g: g.slot), bare, failing(answers))
            await each_part(self._together(aparts, lambda g: g.slot), apart, failing(answers))
        raise_if_none_was_served(answers)
        return answers

    async def claim(
        self, claims: Sequence[SlotClaim], now_ms: int, max_bytes: int = 8 << 20
    ) -> list[SlotClaimed | errors.NotOwner]:
        """See `SortedStore.claim`."""
        answers: list[Any] = [None] * len(claims)
        head = (now_ms // 1000 * 1000, self._channel, MEMBERS)
        parts = self._together(list(enumerate(claims)), lambda c: c[1].slot)

        async def together(whole: Sequence[tuple[int, SlotClaim]]) -> None:
            part = unanswered(whole, answers)
            left_bytes = max(1, max_bytes // len(parts))
            while part:
                keys: list[str] = []
                args: list[Any] = [*head, left_bytes]
                for _, (slot, limit, epoch, until_ms) in part[:SLOTS]:
                    keys += self._keys(slot).of(_KEYS_OF_CLAIM)
                    args += (slot_requests.backwards(slot), int(slot.apart), limit, epoch, until_ms)
                replies = await self._server.run("slot_claim", keys, args)
                done, part = part[: len(replies)], part[len(replies) :]
                for (place, claim), reply in zip(done, replies, strict=True):
                    answers[place] = slot_requests.joined(answers[place], slot_requests.claimed(claim, reply, head[0]))
                place, claim = done[-1]
                left_bytes = max(0, left_bytes - sum(map(slot_requests.claimed_bytes, replies)))
                if replies[-1] and (rest := replies[-1][3]) and left_bytes:  # cut short by the bound of the call
                    part.insert(0, (place, claim._replace(limit=rest)))

        await each_part(parts, together, unserved(answers))
        raise_if_none_was_served(answers)
        return answers

    async def settle(self, settles: Sequence[SlotSettle]) -> list[bool | errors.NotOwner]:
        """See `SortedStore.settle`.

        A member that cannot be folded with its waiting twin becomes a dead letter with that reason. On REPLAY it stays
        dead, and its result is False. Twins share one history: a member that is replayed while its twin is in prepare
        adds its attempts to the twin's.
        """
        check_scores(settles)
        answers: list[Any] = [True] * len(settles)

        async def acknowledge(part: Sequence[slot_requests.Group]) -> None:
            for group, answer in zip(part, await self._run("slot_ack", part, _KEYS_OF_ACK, _claim_of), strict=True):
                slot_requests.place_ack_answers(group, answer, answers)

        async def settle(part: Sequence[slot_requests.Group]) -> None:
            places = [(g, place) for g in part for place in g.places]
            marks = await self._run("slot_settle", part, EVERY_KIND, _RULE, [self.clock.now_us() // 1000])
            for (group, place), mark in zip(places, marks, strict=True):
                epoch = settles[place].epoch
                answers[place] = not_owner(group.slot.name, epoch) if mark == -1 else mark == 1

        for start in range(0, len(settles), MEMBERS):
            acks, others = slot_requests.group_settles(settles, start, start + MEMBERS)
            await each_part(self._together(acks, lambda g: g.slot), acknowledge, failing(answers))
            for at in range(0, len(others), SINGLE_MEMBERS):
                groups = slot_requests.group_others(settles, others[at : at + SINGLE_MEMBERS])
                await each_part(self._together(groups, lambda g: g.slot), settle, failing(answers))
        raise_if_none_was_served(answers)
        return answers

    async def recover(self, recovers: Sequence[Recover], now_ms: int) -> list[int | errors.NotOwner]:
        """See `SortedStore.recover`. Bodies merge by the fold of the slot's last add.

        Many members roll back in several script calls. A new epoch fences earlier owners only after the last of these
        calls. EMQ counts the members that it claimed. If prepare holds more, another program has claimed some as well;
        then all members wait for their time-out.
        """
        answers: list[Any] = [0] * len(recovers)

        async def together(whole: Sequence[tuple[int, Recover]]) -> None:
            part = list(whole)
            while part:
                keys: list[str] = []
                args: list[Any] = [now_ms, SINGLE_MEMBERS]
                for _, (slot, epoch, older_than_ms, held, reason, lost) in part[:SLOTS]:
                    # The stamp of a claim is the beginning of its second plus the retries left.
                    before = "-inf" if older_than_ms is None else f"({-(-older_than_ms // 1000) * 1000}"
                    keys += self._keys(slot).everything
                    args += (
                        slot.address,
                        slot_requests.backwards(slot),
                        epoch,
                        before,
                        int(lost),
                        slot_requests.as_json(reason),
                        len(held),
                        *held,
                    )
                replies = await self._server.run("slot_recover", keys, args)
                again = []
                for (place, recover), (moved, more) in zip(part, replies, strict=False):
                    if moved == -1:
                        answers[place] = not_owner(recover.slot.name, recover.epoch)
                    else:
                        answers[place] += moved
                    if more:
                        again.append((place, recover))
                part = again + part[len(replies) :]

        def fail(part: Sequence[tuple[int, Recover]], failure: errors.EMQError) -> None:
            for place, _ in part:
                answers[place] = failure

        await each_part(self._together(list(enumerate(recovers)), lambda r: r[1].slot), together, fail)
        raise_if_none_was_served(answers)
        return answers

    async def inspect(self, slots: Sequence[Slot], now_ms: int) -> list[SlotState]:
        """See `SortedStore.inspect`; a waiting member counts as due even while its twin is in prepare."""
        answers: list[Any] = [None] * len(slots)

        async def together(whole: Sequence[tuple[int, Slot]]) -> None:
            left = unanswered(whole, answers)
            for start in range(0, len(left), SLOTS):
                part = left[start : start + SLOTS]
                keys: list[str] = []
                for _, slot in part:
                    keys += self._keys(slot).of((STORE, "prepare", "dead", "rests"))
                replies = await self._server.run(
                    "slot_inspect", keys, [now_ms, *(slot_requests.backwards(s) for _, s in part)]
                )
                for (place, _), (waiting, due, prepared, dead, first, oldest, resting) in zip(
                    part, replies, strict=True
                ):
                    oldest_ms = None if oldest is None else int(slot_requests.number(oldest) // 1000) * 1000
                    next_score = None if first is None else slot_requests.number(first)
                    answers[place] = SlotState(waiting, due, prepared, dead, next_score, oldest_ms, resting)

        await each_part(self._together(list(enumerate(slots)), lambda s: s[1]), together, unserved(answers))
        raise_if_none_was_served(answers)
        return answers

    async def forget(self, ended: Sequence[tuple[Slot, int]]) -> list[bool | Failure]:
        """Forget slots of topics that are gone, each under a mark; see `Store`. Return whether each is forgotten."""
        answers: list[Any] = [None] * len(ended)

        async def together(whole: Sequence[tuple[int, tuple[Slot, int]]]) -> None:
            left = unanswered(whole, answers)
            for start in range(0, len(left), SLOTS):
                part = left[start : start + SLOTS]
                keys = [key for _, (slot, _) in part for key in self._keys(slot).everything]
                marks = [mark for _, (_, mark) in part]
                replies = await self._server.run("slot_forget", keys, [len(EVERY_KIND), *marks])
                for (place, _), reply in zip(part, replies, strict=True):
                    answers[place] = reply == 1

        await each_part(self._together(list(enumerate(ended)), lambda e: e[1][0]), together, unserved(answers))
        raise_if_none_was_served(answers)
        return answers

    async def dead(
        self, slot: Slot, after: tuple[int, bytes] = (0, b""), limit: int = 100, max_bytes: int = PAGE_BYTES
    ) -> list[DeadMember]:
        """See `SortedStore.dead`."""
        keys = self._keys(slot).of(("dead", "deadbody", "reason"))
        rows = await self._server.run("slot_dead", keys, [*after, min(limit, PAGE), max_bytes])
        return [slot_requests.dead_member(slot, row) for row in rows]

    async def waiting(self, slot: Slot, skip: int = 0, limit: int = 100, max_bytes: int = PAGE_BYTES) -> list[Waiting]:
        """See `SortedStore.waiting`."""
        args = [slot_requests.backwards(slot), skip, min(limit, PAGE), max_bytes]
        page, records = await self._server.run("slot_waiting", self._keys(slot).of((STORE, "body")), args)
        found: list[Waiting] = []
        for member, score, record in zip(page[::2], slot_requests.numbers(page[1::2]), records, strict=True):
            merged, note, body = slot_requests.unpacked(member, record)
            found.append(Waiting(member, score, body, note, merged))
        return found

    async def _run(
        self,
        script: str,
        groups: Sequence[slot_requests.Group],
        kinds: Sequence[str],
        rule_of: Callable[[slot_requests.Group], Sequence[Any]],
        first: Sequence[Any] = (),
        durability: Durability = Durability.ACCEPTED,
    ) -> list[Any]:
        """Run a script for groups of requests, and return its answer.

        Args:
            kinds: the kinds of keys of a slot that the script takes.
            rule_of: returns the arguments that the requests of a group share.
            first: arguments ahead of those of the groups.
        """
        keys: list[str] = []
        args: list[Any] = [*first]
        for g in groups:
            keys += self._keys(g.slot).of(kinds)
            args += (g.slot.address, slot_requests.backwards(g.slot), *rule_of(g), len(g.places))
            args += g.args
        answer: list[Any] = await self._server.run(script, keys, args, durability)
        return answer

    def _keys(self, slot: Slot) -> SlotKeys:
        return SlotKeys(self._environment, slot.name)

    def _together(self, requests: list[T], slot: Callable[[T], Slot]) -> list[list[T]]:
        """Return the requests in parts, one for each place of their slots."""
        parts: dict[int, list[T]] = {}
        for request in requests:
            parts.setdefault(self._place(self._keys(slot(request)).store), []).append(request)
        return list(parts.values())


_KEYS_OF_ADD = (STORE, "prepare", "emq", "retries")
_KEYS_OF_MERGE = (STORE, "prepare", "emq", "body")
_KEYS_OF_CLAIM = (STORE, "prepare", "emq", "body", "preparebody", "retries", "history")
_KEYS_OF_ACK = (STORE, "prepare", "emq", "preparebody", "history", "retries", "rests")
_RULE = attrgetter("rule")


def _bounded(group: slot_requests.Group) -> tuple[str, int]:
    """Return the arguments of `slot_add` for the rule (keep, max_length, fold): the option of ZADD and the bound."""
    keep, most, _ = group.rule
    return slot_requests.FLAGS[keep], -1 if most is None else most


def _folding(group: slot_requests.Group) -> tuple[Any, ...]:
    """Return the arguments of `slot_merge` for the rule (keep, max_length, fold)."""
    return *_bounded(group), *group.rule[2]


def _claim_of(group: slot_requests.Group) -> tuple[Any, int]:
    """Return the arguments of `slot_ack` for the rule (token, epoch)."""
    token, epoch = group.rule
    return "" if epoch is None else epoch, token


def failing(answers: list[Any]) -> Callable[[Sequence[slot_requests.Group], errors.EMQError], None]:
    """Return a function that gives all requests of a failed call's groups the call's error as their result."""
    return lambda part, failure: slot_requests.place_failure(part, failure, answers)


def unanswered(part: Sequence[tuple[int, T]], answers: Sequence[Any]) -> list[tuple[int, T]]:
    """Return the requests, with their places, that have no answer yet."""
    return [request for request in part if answers[request[0]] is None]


def unserved(answers: list[Any]) -> Callable[[Sequence[tuple[int, Any]], errors.EMQError], None]:
    """Return a function that gives the unanswered requests of a failed call the call's error as their result."""

    def fail(part: Sequence[tuple[int, Any]], failure: errors.EMQError) -> None:
        for place, _ in unanswered(part, answers):
            answers[place] = failure

    return fail
