"""Writes EMQ into one file for `spark-submit --py-files`: python -m emq_spark.bundle emq.zip

Use the file for workers that have EMQ's dependencies (those of the extras `spark` and `redis`, say) but not this
version of EMQ. A zip of the sources alone is not enough: EMQ finds its stores through entry points, which lie beside an
installed package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("emq", "emq_cli", "emq_proof", "emq_trace", "emq_stores", "emq_spark")

SUFFIXES = frozenset({".py", ".sql", ".lua", ".css", ".html", ".typed"})


def write(path: Path) -> None:
    """Write the packages as they are installed here, with EMQ's metadata and entry points, into a zip."""
    about = importlib.metadata.distribution("emq")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            root = Path(spec.origin).parent
            for file in sorted(root.rglob("*")):
                if file.suffix in SUFFIXES and "__pycache__" not in file.parts:
                    bundle.write(file, Path(package) / file.relative_to(root))
        for name in ("METADATA", "entry_points.txt"):
            bundle.writestr(f"emq-{about.version}.dist-info/{name}", about.read_text(name) or "")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        sys.stderr.write("usage: python -m emq_spark.bundle FILE.zip\n")
        return 2
    try:
        write(Path(arguments[0]))
    except OSError as exc:
        sys.stderr.write(f"bundle: cannot write {arguments[0]}: {exc.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
