"""The page of an audit, from data made by hand: no Spark runs."""

from __future__ import annotations

import re
from collections import defaultdict

from emq_spark.audit import report
from emq_spark.audit.charts import Charts, Series
from emq_spark.audit.findings import Kind
from emq_spark.audit.result import Audit
from emq_spark.audit.state import Done


def result(charts: Charts, *kinds: Kind) -> Audit:
    return Audit(defaultdict(int, published=1200), kinds, {}, [], [], {}, charts, Done())


def test_the_page_stands_alone_names_its_pictures_and_escapes_what_users_named() -> None:
    tenant = Series("<b>&", 0.0, (1.0, 1.0), (1.0, 1.0), (1, 0))
    kind = Kind("Q", "over <its> cap", False, 3, ("first <i>", "second"))
    page = report.render(result(Charts(0, 1, tenant, [tenant], 1, [], 0, {}), kind))
    assert "<b>&lt;b&gt;&amp;</b>" in page
    assert "<td>over &lt;its&gt; cap</td><td>3</td><td>first &lt;i&gt;<br>second</td>" in page
    assert "Broken: Q" in page
    assert not re.search(r"https?:|<script|<link|src=|url\(|@import", page)
    assert page.count("<svg") == page.count('role="img" aria-label="') == 7
