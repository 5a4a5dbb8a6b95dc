"""How the pages look, and which sites may frame them: the file of the setting `api_portal`.

The file sets variables of the style sheet, whose names and defaults are those of `static/pages.css`. A value is a
colour or a list of names of fonts in a narrow alphabet, so no value can be anything else in CSS.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from emq.runtime import documents, errors
from emq.runtime.inputs import shown

MOST_BYTES = 256 << 10
"""Most bytes of the file, and of a logo."""
LEAST_CONTRAST = 4.5
"""Least contrast of text with what is behind it (WCAG 2.2, 1.4.3)."""

_ON = [("ink", "ground"), ("ink", "card"), ("soft", "ground"), ("soft", "card"), ("accent", "card")]
_ON += [("accent", "ground"), ("accent-ink", "accent"), ("bad", "card"), ("good", "card"), ("warn", "card")]
"""Colours of texts, each with one behind it."""

_CSS = pathlib.Path(__file__).parent / "static" / "pages.css"
_ORIGIN = re.compile(r"https://(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)+(:\d{1,5})?|http://(localhost|127\.0\.0\.1)(:\d{1,5})?")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_FONT = re.compile(r"[A-Za-z0-9 -]{1,60}(, ?[A-Za-z0-9 -]{1,60}){0,9}")
_LOGOS = (".svg", ".png")

Colours = Mapping[str, str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attributes:
    frame_origins: such as `https://app.example.com` or `https://*.example.com`.
    logo: path of an SVG or PNG file, from the directory of this one.
    light, dark: colours such as `accent = "#1a6752"`, for each of the two schemes.
    """

    frame_origins: Annotated[list[str], Meta(max_length=100)] = []
    name: Annotated[str, Meta(min_length=1, max_length=60)] = "EMQ"
    logo: str = ""
    font: str = ""
    light: dict[str, str] = {}
    dark: dict[str, str] = {}


class Look(NamedTuple):
    """Attributes:
    frame_origins: the sites whose pages may show these pages in a frame.
    name: of the platform, in place of EMQ.
    css: the variables of the style sheet that differ from its own.
    logo: name of its file; empty for none.
    files: `look.css` and the logo.
    """

    frame_origins: tuple[str, ...] = ()
    name: str = "EMQ"
    css: str = ""
    logo: str = ""
    files: Mapping[str, bytes] = {}


def load(path: str) -> Look:
    """Return the look that a file gives; the pages' own if there is no file.

    Raises:
        InvalidSettings: the file or its logo cannot be read, or a value is wrong.
    """
    if not path:
        return Look()
    source = f"file {shown(path)} (setting api_portal)"
    document = documents.parsed(_read(path).decode(errors="replace"), "toml", source, errors.InvalidSettings)
    file = documents.converted(document, _File, source, errors.InvalidSettings)
    for origin in file.frame_origins:
        if not _ORIGIN.fullmatch(origin):
            right = "must be the origin of a site, such as https://app.example.com"
            raise errors.InvalidSettings(f"{source}: frame_origins has {shown(origin)}, which {right}")
    css = _css(file, source)
    files = {"look.css": css.encode()} if css else {}
    logo = ""
    if file.logo:
        kind = pathlib.Path(file.logo).suffix
        if kind not in _LOGOS:
            raise errors.InvalidSettings(f"{source}: logo = {shown(file.logo)} must be a .svg or .png file")
        logo = f"logo{kind}"
        files[logo] = _read(str(pathlib.Path(path).parent / file.logo))
    return Look(tuple(file.frame_origins), file.name, css, logo, files)


def _read(path: str) -> bytes:
    try:
        with pathlib.Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = (getattr(exc, "strerror", None) or str(exc)).lower()
        raise errors.InvalidSettings(f"cannot read {shown(path)} (setting api_portal): {reason}") from exc
    if len(content) > MOST_BYTES:
        raise errors.InvalidSettings(f"{shown(path)} (setting api_portal) is larger than {MOST_BYTES >> 10} KiB")
    return content


def _css(file: _File, source: str) -> str:
    """Return rules that come after those of `pages.css`. Raises `InvalidSettings`."""
    text = _CSS.read_text()
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in text.split("@media", 2)[:2])
    parts = []
    if file.font:
        if not _FONT.fullmatch(file.font):
            raise errors.InvalidSettings(f"{source}: font = {shown(file.font)} must be names of fonts, with commas")
        parts.append(f":root {{ --font: {file.font}; }}\n")
    for scheme, known, given in (("light", light, file.light), ("dark", dark, file.dark)):
        for name, value in given.items():
            if name not in known:
                raise errors.InvalidSettings(f"{source}: {documents.unknown(f'{scheme}.{name}', name, known)}")
            if not _COLOUR.fullmatch(value):
                what = f"{scheme}.{name} = {shown(value)} must be a colour, such as #1a6752"
                raise errors.InvalidSettings(f"{source}: {what}")
        _check_contrast({**known, **given}, scheme, source)
        rule = f":root {{ {''.join(f'--{name}: {value}; ' for name, value in given.items())}}}"
        if given:
            parts.append(f"@media (prefers-color-scheme: {scheme}) {{ {rule} }}\n")
    return "".join(parts)


def _check_contrast(colours: Colours, scheme: str, source: str) -> None:
    for over, under in _ON:
        found = _contrast(colours[over], colours[under])
        if found < LEAST_CONTRAST:
            what = f"{scheme}.{over} = {colours[over]} on {under} = {colours[under]}"
            least = f"contrast of {found:.1f}, and people need {LEAST_CONTRAST}; make one of them darker or lighter"
            raise errors.InvalidSettings(f"{source}: {what} has a {least}")


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    lower, higher = sorted((_luminance(one), _luminance(other)))
    return (higher + 0.05) / (lower + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
