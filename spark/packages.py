"""The packages that EMQ on Spark needs."""

from __future__ import annotations

import importlib.util

from emq import errors

PACKAGES = ("pyspark", "pyarrow")


def require_packages() -> None:
    """Return if the packages are there that an EMQ on Spark needs, wherever its Java runs.

    Raises:
        EMQError: one is missing; install what the text names.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.EMQError(f"EMQ on Spark needs {' and '.join(missing)}; pip install 'emq[spark]'")
