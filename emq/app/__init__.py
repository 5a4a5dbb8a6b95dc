"""The public face of EMQ: `App`.

The class is in five files: `opened.py` (its parts), `hooked.py` (hooks, state and lifespan), `hosting.py` (its life as
a host), `operating.py` (topics, dead letters), `app.py` (messages, families).
"""

from emq.app.app import App

__all__ = ["App"]
