"""The options of a topic, each with its meaning and unit, from which `emq topic options` prints its table."""

from __future__ import annotations

import typing
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from emq.storage.durability import Durability
from emq.topics.secret_names import masked

DEFAULT_BACKOFF_S = (10.0, 30.0, *(60.0 * m for m in range(1, 11)), 1200.0, 1800.0, 3600.0, 7200.0)
"""10 s, 30 s, 1 m ... 10 m, 20 m, 30 m, 1 h, 2 h: sixteen waits, RocketMQ's customary retry levels."""


def means(description: str, unit: str = "") -> Meta:
    """Say what a field of a topic means, and in which unit it is, if it has one."""
    return Meta(description=description, extra={"unit": unit})


class TopicOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a topic; every field has a default that suits webhook push.

    The fields from `ordering` on are for sorted kinds only. `described` returns the meaning of each field.
    """

    pacing: Annotated[
        Literal["window", "smooth"],
        means('"window" starts at most the quota in each aligned second; "smooth" spreads it (token bucket).'),
    ] = "window"
    burst: Annotated[
        float | None,
        means(
            'For pacing "smooth": tokens that may pile up over all groups; none: 1 plus a tenth of a second of qps.',
            "messages",
        ),
    ] = None
    priority_policy: Annotated[
        Literal["strict", "weighted", "aging"],
        means(
            '"strict" always serves the highest first; "weighted" shares by weights; "aging" lifts a message by one '
            "priority for each aging_s seconds that it waits."
        ),
    ] = "strict"
    weights: Annotated[
        tuple[float, ...], means('For priority_policy "weighted": one positive number for each priority.')
    ] = ()
    aging_s: Annotated[
        float, means('For priority_policy "aging": the wait that lifts a message by one priority.', "s")
    ] = 30.0
    budget: Annotated[
        str | None,
        means(
            "Name of another topic whose qps this topic shares: the topics of a budget together start at most its qps "
            "in each second, beside each topic's own qps. A budget may have a budget of its own. It never changes."
        ),
    ] = None
    share: Annotated[
        float,
        means("With a budget: the topic's weight among the topics of that budget while these have a backlog; above 0."),
    ] = 1.0
    max_in_flight: Annotated[
        int | None, means("Most unfinished messages of the topic on one host; none: derived from qps.", "messages")
    ] = None
    max_length: Annotated[
        int | None,
        means(
            "Most messages that the topic may hold in the store, split evenly over its groups; none: no limit.",
            "messages",
        ),
    ] = None
    overflow: Annotated[
        Literal["reject", "drop_oldest"],
        means('A publish beyond max_length: "reject" refuses it (TopicFull); "drop_oldest" drops the oldest messages.'),
    ] = "reject"
    max_payload: Annotated[int, means("Most bytes of a payload.", "bytes")] = 1 << 20
    max_headers: Annotated[
        int,
        means(
            "Most bytes of a message's key and headers together (names, values, and 32 for each header), and most "
            "bytes of a merge key.",
            "bytes",
        ),
    ] = 1 << 17
    max_attempts: Annotated[
        int, means("Deliveries before a message becomes a dead letter, at least 1.", "attempts")
    ] = 16
    backoff_s: Annotated[
        tuple[float, ...], means("Waits after the first, second ... failed attempt; the last repeats.", "s")
    ] = DEFAULT_BACKOFF_S
    jitter: Annotated[
        float, means("Each wait is shortened by a random part of up to this fraction, 0 to 1.", "fraction")
    ] = 0.1
    handler_timeout_s: Annotated[
        float | None,
        means("Time after which EMQ cancels a running handler and counts the attempt as failed; none: no limit.", "s"),
    ] = None
    retention_s: Annotated[float, means("Time for which consumed messages stay readable.", "s")] = 0.0
    ttl_s: Annotated[
        float | None,
        means(
            "Time to live, from when a message is ready (published, or due if it was delayed). After that the message "
            "does not start any more, for the first time or again; EMQ dead-letters it as expired. none: no limit. A "
            "message's own time to live may only be shorter. EMQ finds an expired message within about a second, also "
            "behind others, while the topic is paused and where it has no handler, if it is among the first 500 "
            "messages of its queue or slot, or among the first 500 due ones of its priority in a lane. With retry "
            '"rmq" a member that failed has lost its time, so its time to live begins again.',
            "s",
        ),
    ] = None
    dedupe_s: Annotated[
        float,
        means(
            "Time for which the topic remembers the id of each publish. Within it a publish of the same id stores "
            "nothing: after OutcomeUnknown repeat the publish with the same message_id. 0 remembers nothing. The store "
            "keeps about 150 bytes for each id. Repeat with the same key, too: each group remembers its own ids, and a "
            "message goes to a group by its key, or without a key by its id. A change of the number of groups and a "
            "deletion of the topic make it forget ids.",
            "s",
        ),
    ] = 0.0
    idle_s: Annotated[
        float | None,
        means(
            "Time after which an empty, idle topic sleeps until the next publish; none: never. At least 5. A family "
            "that does not say it has 300.",
            "s",
        ),
    ] = None
    buckets: Annotated[
        int,
        means(
            "Below a family: the parts in which hosts share the family, a power of two up to 16384. 0 plans each group "
            "by itself, for hosts whose handlers serve different topics of the family. It never changes."
        ),
    ] = 1_024
    delay_levels: Annotated[
        dict[str, float],
        means("Delays by name, for `emq publish --delay NAME`; written remind=30m,final=2h, or rocketmq.", "s"),
    ] = {}
    durability: Annotated[Durability, means("The durability that publishes and retries wait for.")] = (
        Durability.ACCEPTED
    )
    attributes: Annotated[
        dict[str, str],
        means(
            "Free texts for the users of EMQ, set one by one as attributes.NAME=TEXT. Services that are installed give "
            "a meaning to some, written without attributes."
        ),
    ] = {}
    ordering: Annotated[
        Literal["slot", "key", "none"],
        means(
            '"slot" runs one message of a slot at a time, as the published RMQ does; "key" one of a slot basis; '
            '"none" runs any messages at the same time, but never two equal ones.'
        ),
    ] = "slot"
    precision: Annotated[
        Literal["second", "millisecond"],
        means(
            'For fixed_time: "second" takes messages at the second that follows their time, as published; '
            '"millisecond" at their very time.'
        ),
    ] = "second"
    time_range_ms: Annotated[
        int | None,
        means("For range_merge: time from the publish until the message is due, if the publish gives no time.", "ms"),
    ] = None
    retry: Annotated[
        Literal["rmq", "backoff"],
        means(
            '"rmq" retries at once, 16 times, as published: in a topic by priority behind all other messages, in one '
            'by time before them; at the message\'s own priority if the handler asks for a time. "backoff" uses '
            "max_attempts and backoff_s, at the original priority. A message that waits for its next attempt stays in "
            "its slot: an equal message published meanwhile merges with it, or waits until it is over."
        ),
    ] = "rmq"
    merge: Annotated[
        Literal["content", "key"],
        means(
            '"content" merges equal payloads, and stores nothing but the payload, as other RMQ programs expect; "key" '
            "merges by a merge key, with headers, time to live and a count of the merged messages."
        ),
    ] = "content"
    fold: Annotated[
        Literal["latest", "sum", "max", "min", "union", "count", "lua"],
        means('For merge "key": the rule that makes one payload of two; see `emq.storage.folds`.'),
    ] = "latest"
    fold_lua: Annotated[str, means('For fold "lua": the text of the chunk.')] = ""
    keep: Annotated[
        Literal["first", "last", "earliest", "latest"] | None,
        means(
            'The time or priority that counts after a merge: "first", "last", "earliest" (lowest), "latest" '
            "(highest); none: the one that is usual for the kind."
        ),
    ] = None
    prepare_timeout_s: Annotated[
        float, means("Time after which a message that a lost consumer claimed is given to another one.", "s")
    ] = 60.0

    def __repr__(self) -> str:
        """Show all options, and no secret: a repr gets into logs and reports of errors."""
        values = {**msgspec.structs.asdict(self), "attributes": masked(self.attributes)}
        return f"TopicOptions({', '.join(f'{name}={value!r}' for name, value in values.items())})"


class Described(NamedTuple):
    """A setting or option of a topic.

    Attributes:
        type: as somebody writes it, such as "number or none", or the words to choose from.
        default: as somebody writes it; "required" if there is none.
        unit: such as "s"; empty if it has none.
    """

    name: str
    type: str
    default: Any
    unit: str
    meaning: str


def described(struct: type[msgspec.Struct]) -> list[Described]:
    """Return the fields of a struct that have a meaning (`means`), in their order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        meta = next((m for m in getattr(hints[field.name], "__metadata__", ()) if isinstance(m, Meta)), None)
        if meta is None or meta.description is None:
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else "required"
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        unit = (meta.extra or {}).get("unit", "")
        found.append(Described(field.name, in_words(hints[field.name]), default, unit, meta.description))
    return found


_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "none"}


def in_words(hint: Any) -> str:
    """Say in words which values a type takes."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return in_words(args[0])
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is tuple:
        return f"list of {in_words(args[0])}s"
    if origin is dict:
        return f"names with a {in_words(args[1])}"
    if args:
        return " or ".join(map(in_words, args))
    if hint in _NAMES:
        return _NAMES[hint]
    return ", ".join(str(member.value) for member in hint)
