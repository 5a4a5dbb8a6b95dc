"""The proof of O and M: one owner, one message at an offset; and accounts that contradict themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq.trail import events
from emq.trail.proof import Expectations
from support.trail_story import MS, T0_US, Delivery, Story, broken, clean, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_starts_before_owning_and_after_a_release_are_found(story: Story) -> None:
    deliveries = clean()
    story.own("host", 5).publish(*deliveries).deliver(*deliveries)
    story.trail().record(events.Released(T0_US + 150 * MS, "shop", 0, 1))
    proof = story.prove()
    assert broken(proof) == "O"
    assert proof.owners.examples == (
        "shop/0: host started 0.003000 s before it owned the group under epoch 1",
        "shop/0: host started 0.042000 s after it had let go of the group under epoch 1",
    )


def test_an_owner_that_no_record_names_is_found(story: Story) -> None:
    proof = tell(story.own("host", None), clean())
    assert (broken(proof), proof.owners.count) == ("O", 1)


@pytest.mark.parametrize(("takes_ms", "found"), [(-50, 1), (-48, 0), (300, 0)])
def test_two_owners_at_a_time_are_found_beyond_the_difference_of_their_clocks(
    story: Story, takes_ms: float, found: int
) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries).own("other", takes_ms)
    story.trail().record(events.Released(T0_US + 201 * MS, "shop", 0, 1))
    assert story.prove().owners.count == found


def test_two_messages_at_one_offset_are_found_unless_the_store_had_lost_the_first(story: Story) -> None:
    deliveries = [*clean(), Delivery("other", 300, 301, 299, "other", offset=3)]
    proof = tell(story, deliveries)
    assert broken(proof) == "M"
    assert proof.offsets.examples == ("m6 and other were both published at offset 3 of shop/0, priority 0",)
    again = Story(story.directory / "again")
    again.publish(*deliveries).deliver(*deliveries)
    again.trail().record(events.Lost(T0_US + 250 * MS, "shop", 0, 0, 3, 4))
    assert again.prove().ok


@pytest.mark.parametrize(("priority", "lost", "found"), [(0, 3, 0), (0, 5, 1), (1, 3, 1)])
def test_only_a_loss_of_its_own_queue_and_place_gives_an_offset_out_again(
    story: Story, priority: int, lost: int, found: int
) -> None:
    story.publish(Delivery("first", 1, 2, offset=3), Delivery("second", 3, 4, offset=3))
    story.trail().record(events.Lost(T0_US, "shop", 0, priority, lost, lost + 1))
    assert story.prove(Expectations()).offsets.count == found


def test_what_contradicts_itself_proves_nothing(story: Story) -> None:
    deliveries = clean()
    story.publish(*deliveries).deliver(*deliveries[:-1])
    story.trail().settled(deliveries[-1].message(), T0_US + 300 * MS)
    proof = story.prove()
    assert proof.void_reasons == (
        "ended without a start: 1 delivery (shop/m19 was settled by host, and attempt 1 was never started)",
    )
