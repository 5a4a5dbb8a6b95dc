"""Topics that together exceed the budget that they share are found, and only those."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from emq.topics.model import Topic, TopicOptions, split
from emq.trail import events
from emq_spark.audit import caps as audit_caps
from emq_spark.audit import local_rows

TOPICS = [
    split(Topic("tenant", 10, shared_s=1)),
    split(Topic("a", 10, options=TopicOptions(budget="tenant"))),
    split(Topic("b", 10, options=TopicOptions(budget="tenant"))),
    split(Topic("other", 10)),
]
SECOND = 1_700_000_000


@pytest.mark.parametrize(("of_b", "found"), [(3, []), (4, [("tenant", audit_caps.BUDGET, 11, 10)])])
def test_topics_that_exceed_their_budget_together_are_found(
    spark: SparkSession, of_b: int, found: list[tuple[str, int, int, int]]
) -> None:
    starts = [("tenant", 0, 2), ("a", 0, 5), ("b", 0, of_b), ("other", 0, 10)]
    rows = [(name, group, SECOND, "host-0", n, events.STARTED) for name, group, n in starts]
    counts = local_rows.frame(
        spark, rows, "topic string, `group` int, second long, source string, n long, event string"
    )
    counts = audit_caps.with_budgets(spark, counts, audit_caps.charges([TOPICS]))
    over = audit_caps.exceeded(counts, audit_caps.frame(spark, audit_caps.of_catalogs([TOPICS])))
    assert [(row.topic, row.group, row.n, row.allowed) for row in over.collect()] == found
