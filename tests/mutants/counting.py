"""Mistakes in counting starts: windows, buckets, borrowing, and the shares of a topic."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "window-allows-one-more",
        "Q",
        "each second allows one start more than the quota",
        "emq/quota/counter.py",
        "self._bound = self._left = shares.allowance(self._course, second)",
        "self._bound = self._left = shares.allowance(self._course, second) + 1",
        "tests/unit/test_counter.py::test_a_quota_is_dealt_out_second_by_second",
    ),
    Mutant(
        "window-grants-in-its-first-second",
        "Q",
        "a group that moved grants in the second of the move, whose quota its former owner may have used",
        "emq/quota/counter.py",
        "self._first = self._second = int(now)",
        "self._first = self._second = int(now) - 1",
        "tests/unit/test_counter.py::test_a_new_counter_grants_nothing_in_the_second_it_is_made_in",
    ),
    Mutant(
        "window-lowers-its-quota-late",
        "Q",
        "a lower quota counts from the next second on only",
        "emq/quota/counter.py",
        "bound = min(self._bound, shares.allowance(self._course, self._second))",
        "bound = self._bound",
        "tests/unit/test_counter.py::test_a_lower_quota_counts_at_once_also_for_what_is_reserved_and_given_back",
    ),
    Mutant(
        "smooth-starts-full",
        "Q",
        "a group gains a burst whenever it moves",
        "emq/quota/smooth.py",
        "self._tokens = 0  # one token is den * MICRO of these",
        "self._tokens = self._capacity",
        "tests/unit/test_counter.py::test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only",
    ),
    Mutant(
        "smooth-saves-up-without-end",
        "Q",
        "an idle group saves up more tokens than its burst",
        "emq/quota/smooth.py",
        "self._tokens = min(self._capacity, self._tokens + (now_us - self._at_us) * self._num)",
        "self._tokens += (now_us - self._at_us) * self._num",
        "tests/unit/test_counter.py::test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only",
    ),
    Mutant(
        "smooth-grants-are-good-for-long",
        "Q",
        "tokens taken now may be used a second later, beside those of that second",
        "emq/quota/smooth.py",
        "return now + 0.001",
        "return now + 1.0",
        "tests/unit/test_dispatcher.py::"
        "test_tokens_that_were_taken_before_a_long_call_are_not_used_after_it[one-by-one]",
    ),
    Mutant(
        "smooth-gives-back-to-a-new-pace",
        "Q",
        "what was taken by the old pace and not used is given to the new one, which begins empty",
        "emq/quota/smooth.py",
        "for tokens in self._taken_from:  # not to those of a pace that has begun since",
        "for tokens in self._supplies(int(now * 1e6)):",
        "tests/unit/test_counter.py::"
        "test_what_was_taken_before_a_change_of_a_smooth_quota_is_not_given_back_to_the_new_one",
    ),
    Mutant(
        "minted-tokens-never-expire",
        "Q",
        "a group that was idle has all the tokens that were minted for it meanwhile",
        "emq/quota/smooth.py",
        "self._next = max(self._next, expired)",
        "self._next = max(self._next, min(expired, 1))",
        "tests/property/test_topic_cap_properties.py::"
        "test_the_bursts_of_smooth_groups_add_up_to_the_topics_in_any_span",
    ),
    Mutant(
        "lender-keeps-what-it-lent",
        "Q",
        "what a group lends is not taken off its own second",
        "emq/quota/borrowing.py",
        "lent = min(n, self.lendable(now))\n        self._left -= lent",
        "lent = min(n, self.lendable(now))",
        "tests/property/test_borrowing_properties.py::"
        "test_the_sum_over_the_sisters_stays_under_the_sum_of_their_quotas",
    ),
    Mutant(
        "lender-keeps-nothing",
        "Q",
        "a group lends its whole second at once, so that a message that reaches it waits",
        "emq/quota/borrowing.py",
        "kept = math.floor(self._bound * (self._second + 1 - now))",
        "kept = 0",
        "tests/unit/test_counter.py::test_a_group_borrows_what_idle_sisters_did_not_use_so_far",
    ),
    Mutant(
        "busy-sister-lends",
        "Q",
        "a group with messages of its own lends to others",
        "emq/quota/borrowing.py",
        "if counter is not self and not sister.buffered and isinstance(counter, BorrowingCounter):\n"
        "                borrowed += counter.lend(n - borrowed, now)",
        "if counter is not self and isinstance(counter, BorrowingCounter):\n"
        "                borrowed += counter.lend(n - borrowed, now)",
        "tests/unit/test_counter.py::test_a_sister_with_messages_lends_nothing",
    ),
    Mutant(
        "shrinking-group-borrows-as-it-moves",
        "Q",
        "while a topic shrinks, a group borrows in the second of its move, in which its former owner may have",
        "emq/quota/borrowing.py",
        "if self._second == self._first:\n            return 0  # a former owner may have borrowed in this second, too",
        "if False:\n            return 0",
        "tests/unit/test_counter.py::test_a_group_of_a_shrinking_topic_borrows_nothing_in_the_second_of_its_move",
    ),
    Mutant(
        "change-counts-before-all-know",
        "Q",
        "a change of the shares counts from the next second on, while hosts still go by the old ones",
        "emq/topics/shares.py",
        "since_s = learned_s(now_s)",
        "since_s = math.floor(now_s) + 1",
        "tests/property/test_topic_cap_properties.py::"
        "test_the_sum_over_groups_keeps_the_cap_in_every_second_whatever_changes",
    ),
    Mutant(
        "coming-share-counts-late",
        "Q",
        "a lower share to come does not count before it begins",
        "emq/topics/shares.py",
        "return min(share.allowance(second) for _, share in course[in_force(course, second) :])",
        "return course[in_force(course, second)][1].allowance(second)",
        "tests/integration/test_host.py::test_a_new_qps_counts_while_the_host_runs",
    ),
    Mutant(
        "topic-created-again-starts-at-once",
        "Q",
        "a topic of a name that was just deleted starts while hosts still start what they hold of the former one",
        "emq/topics/changing.py",
        "shares.beginning(topic.division, shares.learned_s(ended_s), now_s)",
        "shares.beginning(topic.division, int(ended_s) + 1, now_s)",
        "tests/integration/test_created_again.py::"
        "test_a_topic_that_is_created_again_starts_nothing_beside_its_former_life[log-window-4.6]",
    ),
    Mutant(
        "half-of-a-cap-is-used",
        "Q",
        "the groups' shares add up to half of the topic's qps",
        "emq/topics/shares.py",
        "base, extra = divmod(total // MICRO, n)",
        "base, extra = divmod(total // MICRO // 2, n)",
        "tests/property/test_topic_cap_properties.py::test_the_shares_of_a_division_add_up_to_what_the_topic_may_start",
    ),
)
