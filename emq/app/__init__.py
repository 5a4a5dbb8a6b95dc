"""The public face of EMQ: `App`.

The class is in three files: `opened.py` (its parts), `hosting.py` (its life as a host), `app.py` (topics and messages).
"""

from emq.app.app import App

__all__ = ["App"]
