"""The public face of EMQ: `App`.

The class is in four files: `opened.py` (its parts), `hooked.py` (hooks, state and lifespan), `hosting.py` (its life as
a host), `app.py` (topics and messages).
"""

from emq.app.app import App

__all__ = ["App"]
