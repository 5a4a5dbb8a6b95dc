"""Get a Chromium for the tests of the pages: `.venv/bin/python scripts/chromium.py`. Needs npm, and no rights of root.

A Chromium of the machine is used as it is: the variable CHROMIUM names one, or one is on the PATH. Else this unpacks
the npm package @sparticuz/chromium, which carries a headless one with its libraries and fonts, into `.venv/chromium`.
Prints one line; ends with 1 if there is no Chromium, and the tests of the pages are then skipped.
"""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "@sparticuz/chromium@147.0.0"
SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
"""Of the package as npm packs it."""

HOME = pathlib.Path(sys.prefix).resolve() / "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome")

_BINARY = "chromium.br"
_ARCHIVES = ("al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br")

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class Missing(Exception):
    """There is no Chromium; the text says what would help."""


def of_the_machine() -> str | None:
    """Return the path of a Chromium that somebody installed; None without one."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def environment() -> dict[str, str]:
    """Return the variables with which the unpacked Chromium finds its libraries and fonts."""
    _say_where_fonts_are()
    return {"LD_LIBRARY_PATH": str(HOME / "lib"), "FONTCONFIG_FILE": str(HOME / "fonts.conf")}


def unpacked() -> str | None:
    """Return the path of the unpacked Chromium; None if there is none."""
    return str(HOME / "chromium") if (HOME / "fonts.conf").exists() else None


def unpack() -> None:
    """Unpack the package into `HOME`. Raises `Missing`."""
    try:
        import brotli
    except ModuleNotFoundError:
        raise Missing("the module brotli is missing; run make setup") from None
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("install Chromium and put it on the PATH, or name it in CHROMIUM; or install npm")
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "lib").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [npm, "pack", PACKAGE, "--silent"], cwd=place, capture_output=True, text=True, check=False
        )
        packed = next(pathlib.Path(place).glob("*.tgz"), None)
        if done.returncode or packed is None:
            raise Missing(f"npm could not get {PACKAGE}: {(done.stderr or 'no reason given').strip().splitlines()[-1]}")
        body = packed.read_bytes()
    if (found := hashlib.sha256(body).hexdigest()) != SHA256:
        raise Missing(f"{PACKAGE} has the digest {found}, not {SHA256}; somebody changed it")
    with tarfile.open(fileobj=io.BytesIO(body)) as package:
        files = {name: _read(package, f"package/bin/{name}") for name in (_BINARY, *_ARCHIVES)}
    for name in _ARCHIVES:
        with tarfile.open(fileobj=io.BytesIO(brotli.decompress(files[name]))) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
            archive.extractall(HOME)
    binary = HOME / "chromium"
    binary.write_bytes(brotli.decompress(files[_BINARY]))
    binary.chmod(0o755)
    _say_where_fonts_are()


def _say_where_fonts_are() -> None:
    """Write the configuration of the fonts. A virtual environment that was moved has one with the former paths."""
    text, place = _FONTS.format(fonts=HOME / "fonts", cache=HOME / "cache"), HOME / "fonts.conf"
    if not place.exists() or place.read_text() != text:
        place.write_text(text)


def _read(package: tarfile.TarFile, name: str) -> bytes:
    member = package.extractfile(name)
    if member is None:
        raise Missing(f"{PACKAGE} lacks {name}")
    return member.read()


def main() -> int:
    found = of_the_machine() or unpacked()
    try:
        if found is None:
            unpack()
            found = unpacked()
    except Missing as exc:
        sys.stdout.write(f"chromium: none, so the tests of the pages are skipped: {exc}\n")
        return 1
    sys.stdout.write(f"chromium: {found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
