"""A real Chromium for the tests of the pages, driven through playwright."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import runpy
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Browser

ROOT = pathlib.Path(__file__).parents[2]


class BrowserMissing(Exception):
    """There is no Chromium here; the text says what would help."""


def _of_scripts() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "chromium.py"))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start a headless Chromium for the length of a block.

    Raises:
        BrowserMissing: none is installed.
    """
    try:
        from playwright.async_api import Error, async_playwright
    except ModuleNotFoundError:
        raise BrowserMissing("the module playwright is missing; run make setup") from None
    script = _of_scripts()
    installed, unpacked = script["of_the_machine"](), script["unpacked"]()
    if not installed and not unpacked:
        raise BrowserMissing("no Chromium: set CHROMIUM, or run .venv/bin/python scripts/chromium.py")
    flags = ["--no-sandbox", "--headless=shell", "--use-gl=angle", "--use-angle=swiftshader", "--disable-gpu-sandbox"]
    async with async_playwright() as playwright:
        launch = functools.partial(
            playwright.chromium.launch,
            executable_path=installed or unpacked,
            args=flags,
            env=None if installed else script["environment"](),
        )
        try:
            made = await launch()
        except Error:  # Chromium itself crashes once in some hundred starts on a busy machine
            made = await launch()
        try:
            yield made
        finally:
            await made.close()
