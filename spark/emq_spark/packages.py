"""Check that the Python packages that EMQ on Spark needs are installed."""

from __future__ import annotations

import importlib.util

from emq.runtime import errors, extras

PACKAGES = ("pyspark", "pyarrow")


def require_packages() -> None:
    """Return if the packages are installed that EMQ on Spark needs, whether Java runs here or on another machine.

    Raises:
        InvalidSettings: a package is missing; install what the text names.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.InvalidSettings(f"EMQ on Spark needs {' and '.join(missing)}; {extras.remedy('spark')}")
