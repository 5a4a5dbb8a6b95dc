"""Records the demonstration as an animated picture: runs it, and writes docs/assets/demo.svg.

    .venv/bin/python scripts/recording.py [DAYS]    # on a quiet machine: the picture shows its waits

With fewer DAYS than 18, the machine has less to do (see `emq demo --days`).
The picture needs no network and no script. A viewer without animations shows the outcome.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from emq_demo import places, stage, view
from emq_demo.view import Frame, Scene

FILE = Path(__file__).parents[1] / "docs/assets/demo.svg"
WIDTH, LINES = 100, 30
FRAMES = 11
"""Moments of the run in the picture, beside the outcome."""
FRAME_S, LAST_S = 1.2, 6.0
"""Seconds for which a moment, and the outcome, are seen."""

_CELL = 12.2
_LINE = 24.4
"""Width of a character and height of a line, as Rich draws them."""


class Recorder:
    """A screen that keeps all that it is shown."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.frames: list[Frame] = []

    def show(self, frame: Frame) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        pass


def main() -> int:
    days = int(sys.argv[1]) if sys.argv[1:] else None
    logging.getLogger("emq").setLevel(logging.ERROR)  # many deliveries fail on purpose
    recorders: list[Recorder] = []

    def screen(scene: Scene) -> Recorder:
        recorders.append(Recorder(scene))
        return recorders[-1]

    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=True)
    with places.new("sqlite", None) as place:
        report = stage.perform(console, place, "sqlite", 36.0, days, live=True, screen=screen)
    [recorder] = recorders
    shown = chosen(recorder.frames)
    FILE.write_text(drawn([*(view.picture(recorder.scene, frame) for frame in shown), report.render()]))
    sys.stdout.write(f"recording: {FILE} has {len(shown)} moments and the outcome\n")
    return 0 if report.verdict.ok else 1


def chosen(frames: Sequence[Frame]) -> list[Frame]:
    """Return moments from all of the run, evenly spread."""
    step = len(frames) / FRAMES
    return [frames[int((number + 0.5) * step)] for number in range(FRAMES)]


def drawn(pictures: Sequence[RenderableType]) -> str:
    """Return an SVG that shows the pictures in turn, the last one longest, again and again."""
    whole_s = FRAME_S * (len(pictures) - 1) + LAST_S
    styles, groups = [], []
    for number, picture in enumerate(pictures):
        console = Console(width=WIDTH, file=io.StringIO(), record=True, force_terminal=True, legacy_windows=False)
        console.print(picture)
        name = f"f{number}"
        style, text = console.export_svg(code_format="{styles}\0{matrix}", theme=MONOKAI, unique_id=name).split("\0")
        is_last = number == len(pictures) - 1
        begin, end = number * FRAME_S / whole_s, 1.0 if is_last else (number + 1) * FRAME_S / whole_s
        styles.append(style + _turn(name, begin, end))
        hidden = "" if is_last else ' visibility="hidden"'
        groups.append(f'<g id="{name}"{hidden}>{_smaller(text)}</g>')
    width, height = WIDTH * _CELL + 20, LINES * _LINE + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
        f"<title>The demonstration of EMQ in a terminal</title>"
        "<style>text{font:20px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f"g{{animation:{whole_s:g}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){g{animation:none!important}}"
        f"{''.join(styles)}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0c0c0c"/>'
        f'<g transform="translate(10,10)" style="animation:none">{"".join(groups)}</g></svg>\n'
    )


def _turn(name: str, begin: float, end: float) -> str:
    """Return the rules by which a picture is seen in its part of the time."""
    after = "" if end == 1.0 else f"{end:.2%}{{visibility:hidden}}"
    before = "" if begin == 0.0 else "0%{visibility:hidden}"
    return f"#{name}{{animation-name:{name}}}@keyframes {name}{{{before}{begin:.2%}{{visibility:visible}}{after}}}"


def _smaller(text: str) -> str:
    """Leave out what only a fixed width or a scrolled terminal needs."""
    text = re.sub(r' clip-path="[^"]*"', "", text)
    text = re.sub(r'<text class="[^"]*" x="[^"]*" y="[^"]*"[^>]*>(&#160;)*\n?</text>', "", text)
    return text.replace("\n", "")


if __name__ == "__main__":
    sys.exit(main())
