"""Hand on the data that the next audit needs and does not find in new segments."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from emq.topics.model import MICRO, Topic
from emq_spark.audit import local_rows, messages, offsets
from emq_spark.audit import owners as audit_owners
from emq_spark.audit.frames import Frames
from emq_spark.audit.options import AuditOptions
from emq_spark.audit.result import Audit
from emq_spark.audit.segments_read import Input
from emq_spark.audit.state import CatalogSeen, Saved, State


def hand_on(
    state: State,
    frames: Frames,
    found: Input,
    options: AuditOptions,
    result: Audit,
    unusual: DataFrame,
    placed: DataFrame,
    findings: DataFrame,
    unknown: dict[str, int],
) -> None:
    """Write the next state, if the audit keeps a state.

    Args:
        unusual: messages that later steps looked at, see `emq_spark.audit.steps`.
        placed: open messages with their places.
        findings: new findings with their fingerprints.
        unknown: by topic, number of publishes with an unknown outcome.
    """
    if state.directory is None:
        return
    spark = placed.sparkSession
    columns = [*messages.KEY, *messages.SUMS, *messages.HIGHEST, *messages.LOWEST]
    open_ = placed.where(~F.col("is_life") & ~F.col("place").isin(*offsets.ended(options.live)))
    lately = unusual.where(~F.col("is_life") & ~F.col("is_open") & F.col("goes_on"))
    known = state.carried("known", "fingerprint long").union(findings.select("fingerprint"))
    saved = Saved(
        sources=found.sources,
        ledger_names=sorted(found.ledger_names),
        done=result.done,
        queues=list(options.store.queues) if options.store is not None else state.saved.queues,
        violations=result.violations,
        unknown=unknown,
        catalogs=_catalogs(state.saved.catalogs, found.last_us, frames.since_us, options.topics),
    )
    state.hand_on(
        saved,
        {
            "messages": local_rows.nothing(spark, messages.COUNTED).unionByName(
                lately.select(columns).unionByName(open_.select(columns))
            ),
            "recent": frames.carried_rows(unusual.where("is_life")),
            "seconds": frames.seconds.where(F.col("second") >= frames.since_us // MICRO),
            "owners": audit_owners.latest(frames.owners, frames.since_us),
            "known": known,
        },
    )


def _catalogs(
    before: Sequence[CatalogSeen], last_us: int, since_us: int, topics: Sequence[Topic] | None
) -> list[CatalogSeen]:
    """Return the catalogs to carry on.

    The catalog that was current before this audit may have been in force up to the last event. A catalog whose time
    ended before `since_us` is dropped, because no carried event is as old.
    """
    kept = [seen for seen in before[:-1] if seen.until_us >= since_us]
    kept += [CatalogSeen(last_us, seen.topics) for seen in before[-1:]]
    if topics is not None and (not kept or kept[-1].topics != list(topics)):
        kept.append(CatalogSeen(last_us, list(topics)))
    return kept
