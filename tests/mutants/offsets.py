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
        "failed-checkpoint-is-forgotten",
        "D",
        "progress that the database could not take is not saved later",
        "emq/offsets/checkpointer.py",
        "self.unreachable = str(exc)\n            self._not_saved(queues)",
        "self.unreachable = str(exc)",
        "tests/unit/test_checkpointer.py::test_what_could_not_be_saved_is_saved_later_once",
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
        "stale-owner-trims",
        "O",
        "the store is told to drop without the owner's epoch",
        "emq/offsets/checkpointer.py",
        "Trim(q.name, upto, q.group.epoch, mark=q.marks.newest)",
        "Trim(q.name, upto, None, mark=q.marks.newest)",
        "tests/unit/test_checkpointer.py::test_a_trim_by_a_stale_owner_is_refused",
    ),
    Mutant(
        "trim-trusts-a-store-that-came-back",
        "L",
        "the store is told to drop without the mark by which it knows that it has lost messages",
        "emq/offsets/checkpointer.py",
        "Trim(q.name, upto, q.group.epoch, mark=q.marks.newest)",
        "Trim(q.name, upto, q.group.epoch)",
        "tests/unit/test_checkpointer.py::"
        "test_what_the_store_has_lost_meanwhile_is_not_dropped_from_what_came_in_its_place",
    ),
    Mutant(
        "failed-trim-is-forgotten",
        "A",
        "what the store could not drop is not dropped later",
        "emq/offsets/checkpointer.py",
        "self._untrimmed.setdefault(queue.name, queue)",
        "pass",
        "tests/unit/test_checkpointer.py::test_trimming_waits_for_the_store_and_for_the_retention",
    ),
    Mutant(
        "unsaved-progress-has-no-bound",
        "D",
        "a host that cannot save its progress goes on for ever, so that a crash repeats hours",
        "emq/offsets/checkpointer.py",
        "return max(least, math.ceil(rate * self._max_unsaved_s))",
        "return 1 << 60",
        "tests/integration/test_host_outages.py::"
        "test_a_crash_after_ten_seconds_without_the_database_repeats_no_more_than_the_stated_bound",
    ),
    Mutant(
        "rewound-watermark-stays",
        "L",
        "a checkpoint taken back for a store that lost messages keeps its watermark, and skips what comes anew",
        "emq/offsets/checkpoints.py",
        "watermark=min(self.watermark, upto)",
        "watermark=self.watermark",
        "tests/integration/test_store_losses.py::"
        "test_a_live_host_delivers_what_comes_after_a_loss_though_the_store_has_grown_past_it",
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
        "sqlite-moves-a-watermark-back",
        "M",
        "a late checkpoint moves the watermark in SQLite back",
        "emq/database/sql/sqlite/checkpoints_save.sql",
        "watermark = max(excluded.watermark, emq_checkpoints.watermark)",
        "watermark = excluded.watermark",
        "tests/contract/test_saved_progress.py::test_a_watermark_never_moves_back[sqlite]",
    ),
    Mutant(
        "sqlite-lowers-a-fence",
        "O",
        "the fence of checkpoints in SQLite may be lowered",
        "emq/database/sql/sqlite/checkpoints_fence.sql",
        "\nWHERE c.epoch < r.value ->> 1",
        "\nWHERE true",
        "tests/contract/test_saved_progress.py::test_a_fence_is_never_lowered[sqlite]",
    ),
    Mutant(
        "postgresql-saves-a-stale-checkpoint",
        "O",
        "PostgreSQL saves a checkpoint of a lower epoch than it has seen",
        "emq/database/sql/postgresql/checkpoints_save.sql",
        "\nWHERE emq_checkpoints.epoch <= excluded.epoch",
        "",
        "tests/contract/test_saved_progress.py::test_a_lower_epoch_is_refused_and_changes_nothing[postgresql]",
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
    Mutant(
        "postgresql-lowers-a-fence",
        "O",
        "the fence of checkpoints in PostgreSQL may be lowered",
        "emq/database/sql/postgresql/checkpoints_fence.sql",
        "WHERE c.epoch < CAST(r ->> 1 AS bigint)\n"
        "    ORDER BY c.queue\n"
        "    FOR UPDATE OF c\n"
        ")\n"
        "UPDATE emq_checkpoints AS c\n"
        "SET epoch = r.epoch\n"
        "FROM r\n"
        "WHERE c.environment = :environment AND c.queue = r.queue AND c.epoch < r.epoch",
        "ORDER BY c.queue\n"
        "    FOR UPDATE OF c\n"
        ")\n"
        "UPDATE emq_checkpoints AS c\n"
        "SET epoch = r.epoch\n"
        "FROM r\n"
        "WHERE c.environment = :environment AND c.queue = r.queue",
        "tests/contract/test_saved_progress.py::test_a_fence_is_never_lowered[postgresql]",
    ),
    Mutant(
        "checkpoint-says-what-was-read",
        "M",
        "a checkpoint says that all is finished that was read",
        "emq/offsets/checkpointer.py",
        "queue.group.epoch, tracker.watermark, finished",
        "queue.group.epoch, queue.position, finished",
        "tests/unit/test_checkpointer.py::test_only_dirty_queues_are_saved_with_watermark_and_ranges",
    ),
)
