"""The page of metrics: what a host counted, in a form that Prometheus reads."""

from __future__ import annotations

import math

import pytest

from emq.groups.deliveries import SIZES
from emq.observe.metrics import exposition
from emq.observe.metrics.families import Family, Histogram, gauge
from support.scraped import Scraped


def page(*families: Family) -> str:
    return "".join(exposition.pieces(families))


@pytest.mark.parametrize("text", ['we"ird', "two\nlines", "back\\slash\\", "ü€😀", 'a{b="c"} 1\n# HELP x', "\\n", ""])
def test_any_text_can_be_a_label(text: str) -> None:
    found = Scraped(
        page(Family("emq_x_total", "counter", "An X.", [((("handler", text), ("outcome", "dead")), 3)]))
    ).families
    [sample] = found["emq_x_total"].samples
    assert (sample.labels, sample.value) == ({"handler": text, "outcome": "dead"}, 3)


def test_a_text_that_is_not_unicode_spoils_no_page() -> None:
    text = page(gauge("emq_x", "An X.", {"bad \udc80": 1}, "handler"))
    assert Scraped(text.encode().decode()).value("emq_x", handler="bad ?") == 1


@pytest.mark.parametrize("value", [0, 7, True, 0.1, 1e-9, 123456789.25, 1 << 60, math.inf, -math.inf, math.nan])
def test_a_value_comes_back_as_it_was(value: float) -> None:
    found = Scraped(page(gauge("emq_x", "An X.", value))).value("emq_x")
    assert math.isnan(found) if math.isnan(value) else found == value


def test_a_histogram_counts_each_time_in_all_buckets_from_its_size_on() -> None:
    counts = [0] * SIZES
    for time_us in (0, 40, 63, 64, 5_000, 10**12):
        counts[time_us.bit_length()] += 1
    family = Family(
        "emq_x_seconds", "histogram", "X.", [((("handler", "h"),), Histogram(counts, 1_000_005_167))], range(5, 9)
    )
    scraped = Scraped(page(family))
    buckets = [s for s in scraped.families["emq_x_seconds"].samples if s.name.endswith("_bucket")]
    found = [(float(s.labels["le"]), s.value) for s in buckets]
    assert found == [(32e-6, 1), (64e-6, 3), (128e-6, 4), (256e-6, 4), (math.inf, 6)]
    assert scraped.value("emq_x_seconds_count", handler="h") == 6
    assert scraped.value("emq_x_seconds_sum", handler="h") == 1000.005167


def test_a_large_page_comes_in_pieces() -> None:
    values = [((("handler", str(n)),), Histogram([1] * SIZES, 1)) for n in range(200)]
    pieces = list(exposition.pieces([Family("emq_x_seconds", "histogram", "X.", values, range(5, 30))]))
    assert max(piece.count("\n") for piece in pieces) < exposition.PIECE + 40
    assert len(Scraped("".join(pieces)).families["emq_x_seconds"].samples) == 200 * 28
