"""The option of the commands that host: where the metrics and the health page are served."""

from __future__ import annotations

from typing import Annotated

import typer

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics, /livez and /readyz over HTTP there, such as 127.0.0.1:9464.",
        show_default=False,
    ),
]
