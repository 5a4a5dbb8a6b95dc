"""Writes the table of docs/model-gateway.md from the JSON of a run: `python -m bench.gateway.page FILE`."""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.field import ROOT

PAGE = ROOT / "docs" / "model-gateway.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->"
LIMITS = {
    "tokens/minute of north-large": "north: tokens of the large model in any 60 s",
    "tokens/minute of south": "south: tokens, a bucket",
    "requests/day of west": "west: requests of the day, after which it is shut",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.page", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m bench gateway --json` printed")
    parser.add_argument("--to", type=Path, default=PAGE, help="the page (default: docs/model-gateway.md)")
    args = parser.parse_args(argv)
    args.to.write_text(written(args.to.read_text(), json.loads(args.file.read_text())))
    return 0


def written(page: str, run: Mapping[str, Any]) -> str:
    """Return the page with the table of a run."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: BEGIN + table(run) + END, page)


def table(run: Mapping[str, Any]) -> str:
    """Return the table, and what the figures depend on."""
    results = run["results"]
    rows: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        (f"use of {text}", functools.partial(used, name)) for name, text in LIMITS.items()
    ]
    rows += [
        ("answers 429 of the providers", lambda one: f"{one['refusals']:,}"),
        ("errors that callers got, and tried again", lambda one: f"{one['errors']:,}"),
        ("chats answered; not answered by the end", lambda one: f"{one['chats']:,}; {one['unanswered_chats']}"),
        ("first word of a chat: p50, p99", lambda one: f"{one['chat_p50_s']:.2f} s, {one['chat_p99_s']:.2f} s"),
        ("CPU of the process, with its callers", lambda one: f"{one['cpu_s']:.0f} s"),
        ("most that a chat came too late from the load itself", lambda one: f"{one['late_s']:.2f} s"),
        ("batch tokens of all tenants", lambda one: f"{sum(one['tokens'].values()):,}"),
        ("parts of acme, bolt, crux (fair: 60, 20, 20)", parts),
    ]
    lines = [
        f"| | {' | '.join(one['name'] for one in results)} |",
        "|---|" + "---:|" * len(results),
        *(f"| {text} | {' | '.join(cell(one) for one in results)} |" for text, cell in rows),
        "",
        f"Measured on {run['date']}: {run['machine']}; LiteLLM {run['litellm'] or 'not installed'}. One run, "
        f"{run['seconds']} s for each.",
    ]
    return "\n".join(lines) + "\n"


def used(limit: str, one: Mapping[str, Any]) -> str:
    return f"{one['use'][limit]:.0f} %"


def parts(one: Mapping[str, Any]) -> str:
    return ", ".join(f"{one['shares'].get(tenant, 0.0):.0f}" for tenant in ("acme", "bolt", "crux")) + " %"


if __name__ == "__main__":
    sys.exit(main())
