"""What sources of a load hand to the one that publishes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class Batch:
    """Messages of one topic and priority, in the order in which they are to be published.

    Attributes:
        topic: its name.
        seqs: numbers of the messages in the run.
        payloads: one for each.
        ids: one for each; empty for what goes to slots, where the id follows from the content.
        priority: name, or None for the topic's middle one.
        keys, merge_keys: one for each, or None for none.
        due_s: when each is due, seconds after the begin of the load; None for at once.
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
        """The messages at these places."""

        def chosen(values: Any) -> Any:
            if not values:
                return values
            return values[places] if isinstance(places, slice) else [values[i] for i in places]

        columns = (self.keys, self.merge_keys, self.due_s, self.scores)
        seqs, payloads, ids = chosen(self.seqs), chosen(self.payloads), chosen(self.ids)
        return Batch(self.topic, seqs, payloads, ids, self.priority, *map(chosen, columns))


class Slice(NamedTuple):
    """What is to be published in a short stretch of time.

    Attributes:
        end_s: when it ends, seconds after the begin of the load; what belongs to it is published then.
        batches: none if nothing is.
    """

    end_s: float
    batches: Sequence[Batch]


class Source(Protocol):
    """The messages of one partition, the same each time it is asked.

    Attributes:
        rows: messages in all.
        per_s: messages a second, on average.
        step_s: how long a slice is.
    """

    per_s: float
    step_s: float

    @property
    def rows(self) -> int: ...

    def slices(self) -> Iterator[Slice]:
        """In order of time."""
