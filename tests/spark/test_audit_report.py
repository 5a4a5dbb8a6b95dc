"""The page of an audit, from data made by hand: no Spark runs."""

from __future__ import annotations

import re
from collections import defaultdict

from emq_spark.audit import report
from emq_spark.audit.charts import Charts, Series
from emq_spark.audit.findings import Kind
from emq_spark.audit.owners import Pause
from emq_spark.audit.result import Audit
from emq_spark.audit.state import Done

NOBODY = Series("", 0.0, (0.0,), (0.0,), (0,))


def result(charts: Charts, *kinds: Kind) -> Audit:
    return Audit(defaultdict(int, published=1200), kinds, {}, [], [], {}, charts, Done())


def test_red_cells_are_what_was_judged_and_shades_are_shares_of_the_cap() -> None:
    rates = (0.0, 5.0, 10.0, 10.0)
    tenant = Series("one", 10.0, rates, rates, (0, 0, 0, 0), frozenset({2}))
    page = report.render(result(Charts(0, 1, tenant, [tenant], 1, [], 0, {})))
    heat = page.split('class="wide"')[1].split("</figure>")[0]
    assert re.findall(r'<rect class="(\w+)" x="([\d.]+)"', heat) == [
        ("h0", "150.0"),
        ("h4", "397.5"),
        ("over", "645.0"),
        ("h8", "892.5"),
    ]


def test_lines_dots_and_waits_lie_where_their_values_are() -> None:
    total = Series("", 80.0, (0.0, 50.0, 100.0), (0.0, 0.0, 0.0), (0, 1, 0))
    pauses = [Pause("t", 1, 1_000_000, 12_000_000, False), Pause("t", 2, 2_000_000, 12, True)]
    page = report.render(result(Charts(0, 1, total, [], 0, pauses, 3, {0: [(1000.0, 1), (100_000.0, 1)]})))
    assert '<polyline class="p1 line" points="46.0,170.0 300.0,89.0 554.0,8.0 "/>' in page
    assert '<line class="cap" x1="46" x2="554" y1="40.4" y2="40.4"/>' in page
    assert re.findall(r'<circle class="(\w+)" cx="([\d.]+)" cy="([\d.]+)"', page) == [
        ("bad", "215.3", "12.1"),
        ("good", "384.7", "170.0"),
    ]
    assert "1 handed over: half within 12 us, longest 12 us" in page
    assert "longest 12 s</em> · the longest 2 of 3 moves</span>" in page
    assert "priority 0: p50 1 ms, p99 100 ms" in page


def test_a_page_without_data_is_drawn_too() -> None:
    page = report.render(result(Charts(0, 1, NOBODY, [], 0, [], 0, {})))
    assert page.count("<svg") == 4
    assert "no group moved" in page


def test_the_page_stands_alone_names_its_pictures_and_escapes_what_users_named() -> None:
    tenant = Series("<b>&", 0.0, (1.0, 1.0), (1.0, 1.0), (1, 0))
    kind = Kind("Q", "over <its> cap", False, 3, ("first <i>", "second"))
    page = report.render(result(Charts(0, 1, tenant, [tenant], 1, [], 0, {}), kind))
    assert "<b>&lt;b&gt;&amp;</b>" in page
    assert "<td>over &lt;its&gt; cap</td><td>3</td><td>first &lt;i&gt;<br>second</td>" in page
    assert "Broken: Q" in page
    assert not re.search(r"https?:|<script|<link|src=|url\(|@import", page)
    assert page.count("<svg") == page.count('role="img" aria-label="') == 7
