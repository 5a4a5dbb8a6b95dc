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
        "if offset == self.watermark and self._starts is None:",
        "if offset >= self.watermark and self._starts is None:",
        "tests/property/test_tracker_properties.py::"
        "test_the_watermark_is_the_contiguous_prefix_and_the_ranges_are_the_rest",
    ),
    Mutant(
        "watermark-takes-a-gap",
        "M",
        "a gap of one unfinished offset counts as finished",
        "emq/groups/offset_tracker.py",
        "if starts[0] <= self.watermark:",
        "if starts[0] <= self.watermark + 1:",
        "tests/property/test_tracker_properties.py::"
        "test_the_watermark_is_the_contiguous_prefix_and_the_ranges_are_the_rest",
    ),
    Mutant(
        "touching-ranges-stay-apart",
        "M",
        "finished ranges that touch are not joined, so that the watermark stays behind",
        "emq/groups/offset_tracker.py",
        "high = bisect.bisect_right(starts, end)",
        "high = bisect.bisect_left(starts, end)",
        "tests/property/test_tracker_properties.py::"
        "test_the_watermark_is_the_contiguous_prefix_and_the_ranges_are_the_rest",
    ),
    Mutant(
        "range-ends-one-late",
        "L",
        "the offset behind a finished range counts as finished when it is read again",
        "emq/groups/offset_tracker.py",
        "return i >= 0 and offset < self._ends[i]",
        "return i >= 0 and offset <= self._ends[i]",
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
        "group-lost-meanwhile-is-saved",
        "L",
        "what a group lost while checkpoints are gathered counts as finished is saved",
        "emq/offsets/checkpointer.py",
        "if queue.group.lost:\n                    continue  # meanwhile",
        "pass",
        "tests/unit/test_checkpointer.py::test_a_group_that_is_lost_while_progress_is_gathered_is_not_saved",
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
        "broken-checkpoint-is-forgotten",
        "D",
        "progress is not saved later if saving it broke or was cancelled",
        "emq/offsets/checkpointer.py",
        "except BaseException:\n            self._not_saved(queues)\n            raise",
        "except BaseException:\n            raise",
        "tests/unit/test_checkpointer.py::test_what_a_broken_save_did_not_save_is_saved_later",
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
        "bound-of-a-busy-group-is-its-share",
        "Q",
        "a group that starts what others leave comes to the bound of its own share between two checkpoints",
        "emq/fetcher/readiness.py",
        "left += sum([max(0, other.allowance - other.ahead) for other in others])",
        "pass",
        "tests/unit/test_fetcher.py::test_a_group_may_be_unsaved_by_what_the_topics_other_groups_are_not",
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
        "retention-is-forgotten",
        "L",
        "what is retained is dropped with the first note that is old enough, up to the newest one",
        "emq/offsets/retention.py",
        "upto = max((note.watermark for note in queue.notes if note.at_s + kept_s <= now_s), default=0)",
        "upto = max((note.watermark for note in queue.notes), default=0)",
        "tests/unit/test_checkpointer.py::"
        "test_retention_goes_on_where_the_last_owner_of_the_queue_left_off_however_often_it_moves",
    ),
    Mutant(
        "longer-retention-counts-late",
        "L",
        "what waits to be dropped is dropped by the retention that the topic had before",
        "emq/offsets/retention.py",
        "kept_s = _retention_s(queue)",
        "kept_s = 0.0",
        "tests/unit/test_checkpointer.py::"
        "test_retention_goes_on_where_the_last_owner_of_the_queue_left_off_however_often_it_moves",
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
        "lost-progress-comes-late",
        "M",
        "a save under way brings back the checkpoint of messages that the store has lost",
        "emq/host/ownership.py",
        "        await self.loops.checkpointer.until_idle()\n",
        "",
        "tests/integration/test_store_losses.py::"
        "test_a_save_under_way_when_the_store_is_emptied_does_not_bring_the_former_checkpoint_back",
    ),
    Mutant(
        "rewound-ranges-stay",
        "L",
        "a checkpoint taken back keeps finished ranges of messages that the store has lost",
        "emq/offsets/checkpoints.py",
        "finished = tuple((start, min(end, upto)) for start, end in self.finished if start < upto)",
        "finished = self.finished",
        "tests/unit/test_checkpoints.py::test_a_checkpoint_taken_back_tells_of_nothing_that_the_store_has_lost",
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
        "sqlite-takes-ranges-of-a-lower-watermark",
        "D",
        "a late checkpoint with a lower watermark replaces the finished ranges in SQLite",
        "emq/database/sql/sqlite/checkpoints_save.sql",
        "finished = CASE WHEN excluded.watermark >= emq_checkpoints.watermark\n"
        "                    THEN excluded.finished ELSE emq_checkpoints.finished END",
        "finished = excluded.finished",
        "tests/contract/test_saved_progress.py::"
        "test_a_late_checkpoint_keeps_the_finished_ranges_of_the_newer_one[sqlite]",
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
        "sqlite-rewinds-for-a-stale-owner",
        "O",
        "SQLite lets a stale owner take a checkpoint back",
        "emq/database/sql/sqlite/checkpoints_rewind.sql",
        "\nWHERE c.epoch <= r.value ->> 1",
        "\nWHERE true",
        "tests/contract/test_saved_progress.py::test_a_stale_owner_takes_no_checkpoint_back[sqlite]",
    ),
    Mutant(
        "sqlite-does-not-tell-what-it-refused",
        "O",
        "a checkpoint that SQLite refused is not named",
        "emq/database/sql/sqlite/checkpoints_refused.sql",
        "WHERE c.epoch > r.value ->> 1",
        "WHERE c.epoch > r.value ->> 1 + 1",
        "tests/contract/test_saved_progress.py::test_a_lower_epoch_is_refused_and_changes_nothing[sqlite]",
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
        "postgresql-takes-ranges-of-a-lower-watermark",
        "D",
        "a late checkpoint with a lower watermark replaces the finished ranges in PostgreSQL",
        "emq/database/sql/postgresql/checkpoints_save.sql",
        "finished = CASE WHEN excluded.watermark >= emq_checkpoints.watermark\n"
        "                    THEN excluded.finished ELSE emq_checkpoints.finished END",
        "finished = excluded.finished",
        "tests/contract/test_saved_progress.py::"
        "test_a_late_checkpoint_keeps_the_finished_ranges_of_the_newer_one[postgresql]",
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
        "postgresql-rewinds-for-a-stale-owner",
        "O",
        "PostgreSQL lets a stale owner take a checkpoint back",
        "emq/database/sql/postgresql/checkpoints_rewind.sql",
        "WHERE c.epoch <= CAST(r ->> 1 AS bigint)\n",
        "",
        "tests/contract/test_saved_progress.py::test_a_stale_owner_takes_no_checkpoint_back[postgresql]",
    ),
    Mutant(
        "postgresql-does-not-tell-what-it-refused",
        "O",
        "a checkpoint that PostgreSQL refused is not named",
        "emq/database/sql/postgresql/checkpoints_refused.sql",
        "WHERE c.epoch > CAST(r ->> 1 AS bigint)",
        "WHERE c.epoch > CAST(r ->> 1 AS bigint) + 1",
        "tests/contract/test_saved_progress.py::test_a_lower_epoch_is_refused_and_changes_nothing[postgresql]",
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
    Mutant(
        "old-watermark-gets-new-marks",
        "L",
        "a checkpoint whose rewind the database has lost keeps its watermark with marks of what came later",
        "emq/database/sql/sqlite/checkpoints_save.sql",
        "excluded.marks = '[]' OR excluded.watermark < emq_checkpoints.watermark THEN",
        "excluded.marks = '[]' THEN",
        "tests/unit/test_checkpoints.py::test_a_save_below_the_watermark_leaves_its_marks_in_place",
    ),
)
