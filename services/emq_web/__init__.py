"""The HTTP API of the push service: tenants, endpoints, messages, keys.

`application` puts it together, with one file for each resource; `problems` says how errors look, `access` who may do
what, `limits` how much of it. `serving` runs it. Needs the extra `api`.
"""

from __future__ import annotations

import importlib.util

from emq import errors, extras

_missing = [name for name in ("fastapi", "uvicorn", "jinja2") if importlib.util.find_spec(name) is None]
if _missing:
    raise errors.InvalidSettings(f"the HTTP API needs {', '.join(_missing)}: {extras.remedy('api')}")
