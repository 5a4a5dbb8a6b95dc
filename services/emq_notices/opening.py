"""Decides which troubles are news: one that lasts, one that has ended, more dead letters than were told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emq_notices.judging import DEAD, GONE, TROUBLED, Found, Key, Trouble

ENDED_S = 60.0
"""A trouble that nobody has named for so long has ended. Hosts look every `lag_s` (at most 20 seconds); groups that
move are nobody's for a moment."""


class News(NamedTuple):
    """Attributes:
    begun: since when it lasts, in seconds since the epoch; None if it has ended.
    trouble: None if it has ended.
    ended: "well", or "unseen": then there is nothing to tell.
    """

    key: Key
    begun_s: float | None
    trouble: Trouble | None
    ended: str = ""


class Open:
    """The troubles that were told, and those that are too young for it.

    Args:
        told: those told before, with the time at which each began, in milliseconds; for dead letters, their number.
        after_s: how long a trouble must last.
    """

    def __init__(self, told: Mapping[Key, int], after_s: float) -> None:
        self.told = dict(told)
        self.after_s = after_s
        self._since: dict[Key, float] = {}
        self._missing: dict[Key, float] = {}
        self._dead_s: dict[Key, float] = {}

    def news(self, found: Found, now_s: float) -> list[News]:
        """Return what to tell now. The caller publishes each, and then calls `note`."""
        news: list[News] = []
        for key, trouble in found.troubles.items():
            self._missing.pop(key, None)
            since = self._since.setdefault(key, now_s)
            if key.kind == DEAD:
                if trouble.dead > self.told.get(key, 0) and now_s - self._dead_s.get(key, 0.0) >= self.after_s:
                    news.append(News(key, since, trouble))
            elif key not in self.told and (key.kind == GONE or now_s - since >= self.after_s):
                news.append(News(key, since, trouble))
        for key in [key for key in {**self._since, **self.told} if key not in found.troubles]:
            if (ended := self._ended(key, found, now_s)) and key in self.told:
                news.append(News(key, None, None, ended))
            elif ended:
                self._forget(key)
        return news

    def _ended(self, key: Key, found: Found, now_s: float) -> str:
        """Return how a trouble that nobody names has ended, as `News.ended`; empty if it may last."""
        if key.kind in (GONE, TROUBLED):
            return "well" if key.subject in found.live else "unseen" if key.kind == GONE else ""
        if not found.is_whole or now_s - self._missing.setdefault(key, now_s) < ENDED_S:
            return ""
        return "unseen" if key.kind == DEAD else "well"

    def note(self, told: News, now_s: float) -> None:
        """Note that somebody was told."""
        if told.trouble is None:
            self._forget(told.key)
        elif told.key.kind == DEAD:
            self.told[told.key], self._dead_s[told.key] = told.trouble.dead, now_s
        else:
            self.told[told.key] = round((told.begun_s or now_s) * 1000)

    def _forget(self, key: Key) -> None:
        for known in (self.told, self._since, self._missing, self._dead_s):
            known.pop(key, None)
