"""Mistakes in the checkers of a trail: a rule switched off, a bound too wide, an excuse for too much."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "window-cap-has-one-more",
        "Q",
        "one start too many in a second is passed over",
        "tools/emq_proof/checks.py",
        "count > allowed",
        "count > allowed + 1",
        "tests/unit/test_proof_caps.py::test_one_start_too_many_in_an_aligned_second_is_found",
    ),
    Mutant(
        "disorder-of-one-is-passed-over",
        "K",
        "two neighbours of one key may change places",
        "tools/emq_proof/keys.py",
        "before.offset > start.offset and",
        "before.offset > start.offset + 1 and",
        "tests/unit/test_proof_rules.py::test_a_loss_that_was_noticed_before_excuses_no_disorder",
    ),
    Mutant(
        "two-owners-of-one-epoch-pass",
        "O",
        "two hosts may own a group under one epoch, one after the other",
        "tools/emq_proof/owners.py",
        "if before.epoch == after.epoch:",
        "if False:",
        "tests/unit/test_owners.py::test_two_owners_of_one_epoch_are_found_whenever_they_owned_the_group",
    ),
    Mutant(
        "one-duplicate-is-free",
        "D",
        "one repeat of each message is passed over",
        "tools/emq_proof/outcomes.py",
        "if name not in repeated and times > 1}",
        "if name not in repeated and times > 2}",
        "tests/unit/test_proof_accounts.py::test_one_message_delivered_twice_is_found_and_may_be_allowed",
    ),
    Mutant(
        "queued-count-excuses-one",
        "L",
        "one message more than the store holds counts as waiting there",
        "tools/emq_proof/outcomes.py",
        "absent = max(0, len(waiting) - still_queued)",
        "absent = max(0, len(waiting) - still_queued - 1)",
        "tests/unit/test_proof_accounts.py::test_one_message_dropped_is_found",
    ),
    Mutant(
        "checksum-is-not-compared",
        "L",
        "a segment with a flipped bit is believed",
        "emq/trail/segments.py",
        "with pq.ParquetFile(path, page_checksum_verification=True) as file:\n"
        "            header = Header.decode(file.schema_arrow.metadata)\n"
        "            if header.name",
        "with pq.ParquetFile(path) as file:\n"
        "            header = Header.decode(file.schema_arrow.metadata)\n"
        "            if header.name",
        "tests/unit/test_proof_segments.py::test_a_number_that_has_changed_and_can_be_read_voids",
    ),
    Mutant(
        "void-proof-is-ok",
        "L",
        "a proof from a trail with gaps counts",
        "tools/emq_proof/proof.py",
        "return not self.void_reasons and all(",
        "return all(",
        "tests/unit/test_proof_segments.py::test_a_missing_segment_voids[0]",
    ),
)
