"""Finds the place in the user's code where a handler failed."""

from __future__ import annotations

import functools
import os
import pathlib
import sysconfig
import types
import unicodedata
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

MAX_PLACE = 120
"""Most characters of a place."""

STEPS = 100
"""Most frames of an error that are looked at, since a recursion may have thousands."""

LINKS = 4
"""Most errors of a chain of causes that are looked at."""

_EMQ = str(pathlib.Path(__file__).parents[1]) + os.sep

_LIBRARIES = tuple({str(pathlib.Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of(failure: BaseException) -> str:
    """Return the last place in the user's code through which an error came: `shop.py:14 in deliver`.

    The user's code is neither EMQ's nor Python's nor an installed package's. An error from elsewhere, such as a
    time-out, gets the place of its cause, else the last place in an installed package. Returns an empty text if there
    is none.
    """
    error: BaseException | None = failure
    package: types.TracebackType | None = None
    for _ in range(LINKS):
        if error is None:
            break
        own, installed = _last_steps(error.__traceback__)
        if own is not None:
            return _place(own)
        package = package or installed
        error = error.__cause__ or error.__context__
    return "" if package is None else _place(package)


def of_handler(steps: types.TracebackType | None) -> types.TracebackType | None:
    """Return the traceback without the frames of EMQ that called the handler or its middleware."""
    all_steps = [*_walked(steps)]
    own = [step.tb_frame.f_code.co_filename.startswith(_folders()) for step in all_steps]
    if all(own):
        return steps
    last = max(i for i, is_own in enumerate(own) if not is_own)
    found: types.TracebackType | None = all_steps[last].tb_next
    for step, is_own in zip(all_steps[last::-1], own[last::-1], strict=True):
        if not is_own:
            found = types.TracebackType(found, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return found


def _walked(step: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _last_steps(
    step: types.TracebackType | None,
) -> tuple[types.TracebackType | None, types.TracebackType | None]:
    """Return the last step in the user's code, and the last one in an installed package."""
    own = installed = None
    for _ in range(STEPS):
        if step is None:
            break
        match _author(step.tb_frame.f_code.co_filename):
            case "user":
                own = step
            case "package":
                installed = step
        step = step.tb_next
    return own, installed


@functools.lru_cache(1024)
def _author(file: str) -> str:
    if any(part in file for part in _INSTALLED):
        return "EMQ" if file.startswith(_folders()) else "package"
    if file.startswith(_folders()):
        return "EMQ"
    return "Python" if file.startswith((*_LIBRARIES, "<frozen ")) else "user"


@functools.lru_cache(1024)
def _shown(file: str) -> str:
    """Return a file's path, relative to the current directory if it is below that."""
    here = os.path.join(os.path.abspath(os.curdir), "")
    return file.removeprefix(here)


def _place(step: types.TracebackType) -> str:
    """Return the text of a place: at most `MAX_PLACE` characters that every store takes; the ends of names stay."""
    code = step.tb_frame.f_code
    rest = f":{step.tb_lineno} in {_end(code.co_qualname, MAX_PLACE // 2)}"
    return _end(_shown(code.co_filename), MAX_PLACE - len(rest)) + rest


def _end(name: str, most: int) -> str:
    if not name.isprintable():
        name = "".join(ascii(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
    return name if len(name) <= most else "..." + name[3 - most :]


@functools.cache
def _folders() -> tuple[str, ...]:
    """Return the folders of EMQ, and of the packages that are installed with it, each with a separator at its end."""
    try:
        packages = {entry.module.partition(".")[0] for entry in metadata.distribution("emq").entry_points}
    except metadata.PackageNotFoundError:  # as in a copy of the source files
        return (_EMQ,)
    specs = [find_spec(package) for package in sorted(packages - {"emq"})]
    folders = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    return (_EMQ, *(folder + os.sep for folder in folders))
