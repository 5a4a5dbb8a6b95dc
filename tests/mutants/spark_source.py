"""Mistakes in the data source of Spark."""

from __future__ import annotations

from mutants.mutant import Mutant

_REPLACED = "tests/spark/test_datasource_replaced.py"

MUTANTS = (
    Mutant(
        "spark-stream-trusts-the-offset-of-another-queue",
        "L",
        "a stream reads on at its offset in a queue that was made again",
        "spark/emq_spark/source/progress.py",
        "    if incarnation not in (0, found.incarnation):\n",
        "    if False:\n",
        f"{_REPLACED}::test_a_stream_over_an_emptied_store_fails_by_name_or_reads_it_from_its_head[sqlite]",
    ),
    Mutant(
        "spark-stream-trusts-a-restored-store",
        "L",
        "a stream does not look whether its last message is still there",
        "spark/emq_spark/source/progress.py",
        "    return {queue for queue, shown in found.items() if shown != at[queue].last}",
        "    return set()",
        f"{_REPLACED}::test_a_stream_over_a_restored_store_fails_by_name_or_reads_it_from_its_head[sqlite]",
    ),
)
