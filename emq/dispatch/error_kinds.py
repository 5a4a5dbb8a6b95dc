"""Tells kinds of errors apart, and remembers the kinds whose traceback the log has shown lately."""

from __future__ import annotations

from emq.runtime import errors

SAID_AGAIN_S = 60.0
"""Seconds before the log shows another traceback of the same kind of error."""

KINDS = 1_000
"""Most kinds remembered. One more takes the place of the kind whose traceback is the oldest."""

FRAMES = 12
"""Most frames of one error that decide on its kind; `LINKS`: most errors of one chain or group."""

LINKS = 6


class _Shown:
    """Attributes:
    at_s: when the last traceback of the kind was shown.
    since: number of errors of the kind after that.
    """

    __slots__ = ("at_s", "since")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.since = 0


class ErrorKinds:
    """The kinds of errors whose traceback was shown."""

    def __init__(self) -> None:
        self._shown: dict[int, _Shown] = {}  # the oldest traceback first

    def __len__(self) -> int:
        return len(self._shown)

    def show(self, kind: int, now: float, *, allowed: bool = True) -> int | None:
        """Note an error of this kind. Decide whether its traceback is shown.

        Args:
            kind: from `kind_of`.
            now: seconds since the epoch.
            allowed: False if no traceback may be shown now.

        Returns:
            None for no traceback, else the number of errors of this kind since the last traceback.
        """
        shown = self._shown.get(kind)
        if not allowed or (shown is not None and 0 <= now - shown.at_s < SAID_AGAIN_S):
            if shown is not None:
                shown.since += 1
            return None
        if shown is not None:
            del self._shown[kind]
        elif len(self._shown) >= KINDS:
            del self._shown[next(iter(self._shown))]
        self._shown[kind] = _Shown(now)
        return 0 if shown is None else shown.since


def kind_of(failure: BaseException) -> int | None:
    """Return a number for the kind of an error: its class, its traceback, and those of its causes.

    The text of an error does not count, since it may name the message. Returns None for a `Retry` or `Reject` without a
    cause: the handler raised it on purpose, and its reason says all.
    """
    if isinstance(failure, (errors.Retry, errors.Reject)) and failure.__cause__ is None:
        return None
    parts: list[object] = []
    left: list[BaseException] = [failure]
    for _ in range(LINKS):
        if not left:
            break
        error = left.pop()
        parts.append(type(error))
        step = error.__traceback__
        for _ in range(FRAMES):  # a recursion may have thousands
            if step is None:
                break
            parts += (id(step.tb_frame.f_code), step.tb_lasti)  # to find the line would take far longer
            step = step.tb_next
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions[:LINKS]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            left.append(cause)
    return hash(tuple(parts))
