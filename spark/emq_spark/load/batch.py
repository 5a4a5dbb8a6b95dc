"""Batches and slices: the messages that a load's source gives to the task that publishes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class Batch:
    """Messages of one topic and priority, in the order in which the task publishes them.

    Attributes:
        topic: name of the topic.
        seqs: numbers of the messages in the run.
        payloads: payload of each message.
        ids: id of each message; empty for messages that go to slots, whose ids follow from their contents.
        priority: name of the priority, or None for the topic's middle one.
        keys, merge_keys: key and merge key of each message, or None for none.
        due_s: due time of each message, seconds after the begin of the load; None for at once.
        scores: priority numbers for topics of kind priority; else None.
    """

    topic: str
    seqs: Sequence[int]
    payloads: Sequence[bytes]
    ids: Sequence[str] = ()
    priority: str | None = None
    keys: Sequence[str | None] | None = None
    merge_keys: Sequence[str] | None = None
    due_s: Sequence[float] | None = None
    scores: Sequence[float] | None = None

    def __len__(self) -> int:
        return len(self.seqs)

    def only(self, places: Sequence[int] | slice) -> Batch:
        """Return a batch of the messages at these places."""

        def chosen(values: Any) -> Any:
            if not values:
                return values
            return values[places] if isinstance(places, slice) else [values[i] for i in places]

        columns = (self.keys, self.merge_keys, self.due_s, self.scores)
        seqs, payloads, ids = chosen(self.seqs), chosen(self.payloads), chosen(self.ids)
        return Batch(self.topic, seqs, payloads, ids, self.priority, *map(chosen, columns))


class Slice(NamedTuple):
    """The messages of a short stretch of time.

    Attributes:
        end_s: end of the stretch, seconds after the begin of the load; the task publishes the messages then.
        batches: the messages; empty if the stretch has none.
    """

    end_s: float
    batches: Sequence[Batch]


class Source(Protocol):
    """The messages of one partition; a source makes the same messages each time.

    Attributes:
        rows: number of messages.
        per_s: messages a second, on average.
        step_s: seconds of a slice.
    """

    per_s: float
    step_s: float

    @property
    def rows(self) -> int: ...

    def slices(self) -> Iterator[Slice]:
        """Yield the slices in order of time."""
