"""One member of a slot as a row of the SQL store, and the forms of its columns.

A *twin* of a member is the same member in another state, or added again.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from dataclasses import dataclass

import msgspec

from emq.runtime import errors
from emq.storage import folds
from emq.storage.slot_store import LATEST, RETRIES, Fold, Slot, SlotKind, told_score
from emq_stores.sql.damage import MOST
from emq_stores.sql.texts import well_formed

WAITING, PREPARED, DEAD = 0, 1, 2

Key = tuple[int, str]
"""A slot's id and the digest of a member."""

_fold = msgspec.json.Decoder(Fold)
_history = msgspec.json.Decoder(list[tuple[int, str]])


def digest(member: bytes) -> str:
    """Return the digest that stands for a member in keys and indexes."""
    return hashlib.sha1(member, usedforsecurity=False).hexdigest()


def rank_of(kind: SlotKind, score: float) -> float:
    """Return a score's rank in claim order; ranks ascend for every kind, so that one index serves all kinds."""
    return 0.0 - score if kind is SlotKind.PRIORITY else float(score)


def score_of(kind: SlotKind, rank: float) -> float:
    """Return the score of a rank, an int if it is whole."""
    return told_score(0.0 - rank if kind is SlotKind.PRIORITY else rank)


def history_of(text: str) -> list[tuple[int, str]]:
    """Return the failed attempts of a row; an empty list for a damaged row."""
    try:
        return _history.decode(text) if text else []
    except (msgspec.MsgspecError, ValueError):
        return []  # damaged; later attempts are noted


def merged_of(number: object) -> int:
    """Return the number of adds that a row stands for; 0, as no sound row has, for a damaged one: SQLite keeps text."""
    return number if isinstance(number, int) else 0


def fold_of(text: str | None) -> Fold:
    """Return the fold of a slot's row."""
    try:
        return LATEST if text is None else _fold.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return LATEST  # damaged; the next add notes the topic's fold


def text_of(fold: Fold) -> str | None:
    """Return a fold as text for `fold_of`."""
    return None if fold == LATEST else msgspec.json.encode(fold).decode()


def joined(*histories: list[tuple[int, str]]) -> str:
    """Return failed attempts in order of time, as text for `history_of`."""
    return _written(sorted(itertools.chain(*histories), key=operator.itemgetter(0)))


def _written(history: list[tuple[int, str]]) -> str:
    return msgspec.json.encode(history[-RETRIES:]).decode() if history else ""


def retries_left(score: float, noted: str) -> int:
    """Return the retries that a member of this score has left after a claim.

    Args:
        noted: `Member.reason` of a waiting member.
    """
    left = RETRIES if score > RETRIES else max(0, int(score) - 1)
    return min(left, max(0, noted_retries(noted) - 1)) if noted else left


def noted_retries(noted: str) -> int:
    """Return the lowest number of retries with which a member was put back; `RETRIES` for a damaged note."""
    try:
        number = int(noted)
    except ValueError:
        return RETRIES
    return number if -MOST < number <= RETRIES else RETRIES


def beyond(noted: str) -> int:
    """Return how many deliveries a claimed member had beyond its retries; `noted` as in `retries_left`."""
    return max(0, 1 - noted_retries(noted)) if noted else 0


@dataclass(slots=True, eq=False)
class Member:
    """A member in one of its states.

    Attributes:
        reason: for a dead member, why it died; for others, the lowest number of retries with which the member was put
            back, as text, or empty.
        origin: state of its row in the table; None if it has no row yet.
        rank: for a waiting member, see `rank_of`; for a prepared one, its token; for a dead one, its time of death in
            ms.
        merged: number of adds that the member stands for.
        history: its failed attempts, as text.
        member: its content; only for a member without a row.
        body, note: for topics with a merge key; None until they are read from the table.
        changed: True if the row must be moved or rewritten, without body and note.
        filled: True if body and note must be written, too.
    """

    origin: int | None
    rank: float
    merged: int = 1
    reason: str = ""
    history: str = ""
    member: bytes = b""
    body: bytes | None = None
    note: bytes | None = None
    changed: bool = False
    filled: bool = False

    def fill(self, body: bytes, note: bytes) -> None:
        self.body, self.note, self.filled = body, note, True

    def note_retries(self, score: float) -> None:
        """Note that the member is put back with `score`; keep the lower number of retries."""
        if score <= RETRIES:
            self.reason = str(min(noted_retries(self.reason), max(0, int(score))))

    def note_failed(self, left: int) -> None:
        """Note that an attempt with `left` retries left failed; each attempt takes one retry, also below 0."""
        self.reason = str(min(left, noted_retries(self.reason) - 1) if self.reason else left)

    def failed(self, at_ms: int, reason: str) -> None:
        if reason:
            self.history = joined(history_of(self.history), [(at_ms, well_formed(reason))])

    def inherit(self, older: Member, slot: Slot, fold: Fold) -> errors.InvalidMessage | None:
        """Merge the older, dead twin into this member; return the error if their bodies cannot be folded."""
        last = [(int(older.rank), older.reason)] if older.reason else []
        self.history = _written([*history_of(older.history), *last, *history_of(self.history)])
        if not slot.apart:
            return None
        if fold.name != "latest":
            try:
                self.fill(folds.apply(fold, older.body or b"", self.body or b""), self.note or b"")
            except errors.InvalidMessage as exc:
                return exc
        self.merged += older.merged
        return None
