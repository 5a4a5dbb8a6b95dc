"""Threads that never keep a process from ending."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(concurrent.futures.ThreadPoolExecutor):
    """Runs each function in a daemon thread of its own, for `loop.run_in_executor`; also while the interpreter ends.

    A function that hangs does not keep the process from ending, and its caller can be cancelled. The usual pool refuses
    new work when the process ends, and joins its threads. This class is called a pool only because event loops take no
    other kind of default executor.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1, name)
        self._name = name

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except StopIteration as exc:  # a future of an event loop refuses it
                error = RuntimeError("the function raised StopIteration")
                error.__cause__ = exc
                future.set_exception(error)
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future
