"""The session with the ensemble, as one event loop sees it: its states, its calls, and its log messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from kazoo import exceptions

from emq.allocation.tree.protocol import SessionState
from emq.allocation.zookeeper.cluster_url import Address
from emq.allocation.zookeeper.kazoo_client import SILENCE, Access, Client, Failure
from emq.runtime import errors

log = logging.getLogger(__name__)

FIRST_COMPLAINT_S = 1.0
"""Seconds without an answer from any server before the first log message."""

COMPLAIN_EVERY_S = 30.0
"""Seconds between further log messages."""

CLOSE_S = 2.0
"""Most seconds for the clean end of a session, before the client breaks the connection."""

REVIVAL_S = 1.0
"""Seconds before a new client replaces one that gave up."""


class Session:
    """Keeps a session with the ensemble, and begins a new one whenever the session is lost.

    Args:
        on_state: called at each change of state, on the loop; `id` and `timeout_s` are those of the new state.

    Attributes:
        id: the id of the session; 0 while there is no session.
        timeout_s: the negotiated time-out in seconds; before the first session, the requested one.
        state: the state of the session; None before the first connection.
    """

    def __init__(
        self, address: Address, access: Access, timeout_s: float, on_state: Callable[[SessionState], None]
    ) -> None:
        self.id = 0
        self.timeout_s = timeout_s
        self.state: SessionState | None = None
        self._address = address
        self._access = access
        self._asked_timeout_s = timeout_s
        self._on_state = on_state
        self._client: Client | None = None
        self._relay: _Relay | None = None
        self._closed = False
        self._news = asyncio.Event()
        self._failures: dict[str, Failure] = {}
        self._complaint: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Return once a server has answered; wait for that without limit.

        Raises:
            InvalidSettings: a server refused the user and password, or a certificate; correct them.
        """
        if self._client is None and not self._closed:
            self._start()
        while self.state is not SessionState.CONNECTED:
            if self._closed:
                raise errors.ClusterUnavailable(f"the session with {self._address} is closed; open another")
            self._raise_if_refused()
            self._news.clear()
            await self._news.wait()

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of kazoo's client, named without its `_async`.

        Raises:
            ClusterUnavailable: no server answers, or none answered within the session's time-out; the call may have
                happened.
            ForeignTree: the access lists of others forbid the call.
        """
        if self._client is None or self.state is not SessionState.CONNECTED:
            raise errors.ClusterUnavailable(f"no ZooKeeper server of {self._address} answers; try again later")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        try:
            asked = getattr(self._client.kazoo, f"{method}_async")(*args, **options)
            asked.rawlink(lambda result: _post(loop, _settle, answer, result))
            async with asyncio.timeout(self.timeout_s):
                return await answer
        except TimeoutError:
            text = f"{self._address} gave no answer to {method} within {self.timeout_s:g} s"
            raise errors.ClusterUnavailable(f"{text}; whether it happened is unknown") from None
        except (exceptions.KazooException, OSError, RuntimeError, EOFError) as exc:
            if isinstance(exc, _ANSWERS):
                raise
            raise _translated(exc, method, args[0], self._address) from exc

    async def close(self) -> None:
        """End the session and its threads, within a few seconds. Safe to repeat."""
        self._closed = True
        self._news.set()
        self._stop_timers()
        if self._client is not None:
            client, self._client = self._client, None
            connected = self.state is SessionState.CONNECTED
            self._end(client, grace_s=min(CLOSE_S, self.timeout_s / 3) if connected else 0)
        self.id = 0
        self.state = None
        if self._ending:
            await asyncio.wait(self._ending)

    def _start(self) -> None:
        self._relay = _Relay(self, asyncio.get_running_loop())
        self._client = Client(self._address.servers, self._access, self._asked_timeout_s, self._relay)
        self._client.start()
        self._complain_in(FIRST_COMPLAINT_S)

    def _end(self, client: Client, grace_s: float) -> None:
        if self._relay is not None:
            self._relay.active = False
        task = asyncio.create_task(_stop(client, grace_s))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # --------------------------------------------------------------------------------- what the client reports

    def connected(self, session: int, timeout_s: float) -> None:
        if self.state is not None:
            log.info("connected to ZooKeeper again (%s)", self._address)
        self._failures.clear()
        self._stop_timers()
        self.id, self.timeout_s = session, timeout_s
        self._watch_silence()
        self._enter(SessionState.CONNECTED)

    def disconnected(self) -> None:
        if self.state is SessionState.CONNECTED:
            self._complain_in(FIRST_COMPLAINT_S)
            self._enter(SessionState.SUSPENDED)

    def expired(self) -> None:
        if self.id:
            self.id = 0
            self._complain_in(FIRST_COMPLAINT_S)
            self._enter(SessionState.LOST)

    def ended(self) -> None:
        """Start another client after an unexpected error of kazoo; the session may live on, but is lost to us."""
        log.error("the ZooKeeper client ended unexpectedly; starting another")
        if self._client is not None:
            client, self._client = self._client, None
            self._end(client, grace_s=0)
        self.expired()
        asyncio.get_running_loop().call_later(REVIVAL_S, lambda: None if self._closed else self._start())

    def failed(self, server: str, failure: Failure) -> None:
        self._failures[server] = failure
        self._news.set()

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._news.set()
        self._on_state(state)

    def _raise_if_refused(self) -> None:
        refused = {server: failure for server, failure in self._failures.items() if failure.refused}
        credentials = [server for server, failure in refused.items() if failure.refused == "credentials"]
        # One server with a bad certificate must not keep a host from starting; a password is the same for all servers.
        if credentials or (refused and len(self._failures) == len(self._address.servers)):
            server = (credentials or list(refused))[0]
            remedy = "the user and password in `cluster`" if credentials else "cluster_ca, cluster_cert and cluster_key"
            raise errors.InvalidSettings(
                f"ZooKeeper at {server} cannot be used: {refused[server].reason}; correct {remedy}"
            )

    # -------------------------------------------------------------------------------------------------- timers

    def _complain_in(self, seconds: float) -> None:
        if self._complaint is not None:
            self._complaint.cancel()
        self._complaint = asyncio.get_running_loop().call_later(seconds, self._complain)

    def _complain(self) -> None:
        unknown = Failure("no answer yet, or its name does not resolve", "")
        reasons = [f"{server}: {self._failures.get(server, unknown).reason}" for server in self._address.servers]
        log.warning("no ZooKeeper server can be used, trying again; %s", "; ".join(reasons))
        self._complain_in(COMPLAIN_EVERY_S)

    def _watch_silence(self) -> None:
        """Drop a silent connection: kazoo itself keeps one while it has requests to send."""
        client = self._client
        if client is None:
            return
        if time.monotonic() - client.heard_s > self.timeout_s * SILENCE:
            client.drop()
            self.disconnected()
        else:
            self._watchdog = asyncio.get_running_loop().call_later(self.timeout_s / 12, self._watch_silence)

    def _stop_timers(self) -> None:
        for timer in (self._complaint, self._watchdog):
            if timer is not None:
                timer.cancel()


class _Relay:
    """Hands the reports of the client's threads over to the loop.

    Attributes:
        active: whether reports are handed over; false drops them.
    """

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        self.active = True
        self._session = session
        self._loop = loop

    def connected(self, session: int, timeout_s: float) -> None:
        self._hand_over(self._session.connected, session, timeout_s)

    def disconnected(self) -> None:
        self._hand_over(self._session.disconnected)

    def expired(self) -> None:
        self._hand_over(self._session.expired)

    def ended(self) -> None:
        self._hand_over(self._session.ended)

    def failed(self, server: str, failure: Failure) -> None:
        self._hand_over(self._session.failed, server, failure)

    def _hand_over(self, report: Callable[..., None], *args: object) -> None:
        _post(self._loop, lambda: report(*args) if self.active else None)


_ANSWERS = (
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.BadVersionError,
    exceptions.NotEmptyError,
)


def _translated(exc: Exception, method: str, path: str, address: Address) -> errors.EMQError:
    match exc:
        case exceptions.NoAuthError():
            who = f"user {address.user!r}" if address.user else "somebody without a user"
            return errors.ForeignTree(f"{who} may not {method} {path}; correct `cluster`, or choose another chroot")
        case exceptions.InvalidACLError():
            return errors.InvalidSettings(
                f"{address} does not accept this kind of user; correct cluster_auth, or the servers' settings"
            )
        case exceptions.NoChildrenForEphemeralsError():
            return errors.ForeignTree(f"the parent of {path} is ephemeral; choose another chroot")
    reason = str(exc) or type(exc).__name__
    return errors.ClusterUnavailable(f"{method} of {path} at {address} failed ({reason}); it may have happened")


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.exception is not None:
        answer.set_exception(result.exception)
    else:
        answer.set_result(result.value)


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(function, *args)


async def _stop(client: Client, grace_s: float) -> None:
    stopping = asyncio.create_task(asyncio.to_thread(client.stop))
    await asyncio.wait({stopping}, timeout=grace_s)
    if not stopping.done():
        client.drop()
    await stopping
