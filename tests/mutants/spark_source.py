"""Mistakes in the data source of Spark, and in its load generator."""

from __future__ import annotations

from mutants.mutant import Mutant

_LOAD = "tests/spark/test_load_incarnations.py"
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
        "spark-load-trusts-the-offset-of-another-queue",
        "D",
        "a load that is tried again takes the queues of an emptied store for those of its ledger, and publishes twice",
        "spark/emq_spark/load/incarnations.py",
        "        check_same(bounds, {queue: self.tail(queue, FIRST) for queue in self._made}, load_state.REMEDY)\n",
        "",
        f"{_LOAD}::test_a_store_that_is_emptied_within_an_attempt_is_noticed_by_the_next_one",
    ),
)
