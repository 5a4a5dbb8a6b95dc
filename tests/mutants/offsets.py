"""Mistakes in progress: watermarks, checkpoints, trimming, retention, stores that lost messages."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "progress-before-its-record",
        "L",
        "progress is saved before the records of the finished messages are written",
        "emq/offsets/checkpointer.py",
        "            await self._records.written()\n            refused",
        "            refused",
        "tests/unit/test_records.py::test_nothing_is_saved_as_finished_before_it_is_recorded",
    ),
    Mutant(
        "watermark-leaps",
        "M",
        "an offset beyond the watermark moves the watermark over unfinished ones",
        "emq/groups/offset_tracker.py",
        "            if start == self.watermark:\n",
        "            if start >= self.watermark:\n",
        "tests/property/test_tracker_properties.py::"
        "test_the_watermark_is_the_contiguous_prefix_and_the_ranges_are_the_rest",
    ),
    Mutant(
        "checkpoint-drops-finished-ranges",
        "D",
        "a checkpoint holds the watermark only, so that a crash repeats all that is finished above it",
        "emq/offsets/checkpointer.py",
        "finished = tuple(tracker.finished())",
        "finished = ()",
        "tests/unit/test_checkpointer.py::test_only_dirty_queues_are_saved_with_watermark_and_ranges",
    ),
    Mutant(
        "refused-checkpoint-counts-as-saved",
        "O",
        "a refused checkpoint does not tell that the group has a newer owner",
        "emq/offsets/checkpointer.py",
        "if queue.name in refused:\n                    self._events.lost(queue.group)\n                    continue",
        "",
        "tests/unit/test_checkpointer.py::test_a_refused_checkpoint_means_the_group_is_lost_and_is_not_trimmed",
    ),
    Mutant(
        "trim-passes-the-checkpoint",
        "L",
        "the store drops what is finished before a checkpoint says so",
        "emq/offsets/checkpointer.py",
        "ripe[queue.name] = queue, queue.saved",
        "ripe[queue.name] = queue, queue.tracker.watermark",
        "tests/unit/test_checkpointer.py::test_the_store_is_trimmed_up_to_what_is_saved_and_no_further",
    ),
    Mutant(
        "sqlite-saves-a-stale-checkpoint",
        "O",
        "SQLite saves a checkpoint of a lower epoch than it has seen",
        "emq/database/sql/sqlite/checkpoints_save.sql",
        "\nWHERE emq_checkpoints.epoch <= excluded.epoch",
        "",
        "tests/contract/test_saved_progress.py::test_a_lower_epoch_is_refused_and_changes_nothing[sqlite]",
    ),
    Mutant(
        "postgresql-moves-a-watermark-back",
        "M",
        "a late checkpoint moves the watermark in PostgreSQL back",
        "emq/database/sql/postgresql/checkpoints_save.sql",
        "watermark = greatest(excluded.watermark, emq_checkpoints.watermark)",
        "watermark = excluded.watermark",
        "tests/contract/test_saved_progress.py::test_a_watermark_never_moves_back[postgresql]",
    ),
)
