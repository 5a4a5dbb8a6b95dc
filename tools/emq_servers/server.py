"""The base of all servers: start a process on 127.0.0.1, wait until it replies, stop or kill it, and clean up."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.util
import os
import pwd
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from emq.runtime import errors, private_files

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 1.0
LOOK_S = 0.1
"""Seconds between looks whether the server has ended."""
_PROBE_PAUSE_S = 0.01
_LOG_TAIL_LINES = 15


class ServerMissing(errors.EMQError):
    """The server's program is not on this machine. Install the package that the text names."""


class ServerFailed(errors.EMQError):
    """A server did not start, or not in time; the text says why, mostly with the last lines of the server's log."""


class Started:
    """What `start_...` functions return: a context manager that closes what they started."""

    def close(self) -> None:
        """Stop everything, and remove temporary directories. Safe to repeat."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Server(Started):
    """One server process on 127.0.0.1; a context manager.

    States: *running* (after `started` or `restart`), *stopped* (after `stop`, `kill` or a crash; the data stays),
    *closed* (after `close`, the end of the `with` block or of the interpreter; a temporary directory is gone).

    A server started in the main thread dies with this process, however this process ends. The kernel ties a server to
    the *thread* that started it. So a server started in another thread stops only at the interpreter's orderly exit.

    Attributes:
        directory: holds the data and the log.
        port: the port, the same for the whole life of the object.
        log: the file with all that the server printed, over all its starts.
    """

    name: ClassVar[str]
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    _death_signal: ClassVar[str] = "KILL"

    def __init__(self, directory: Path | None, port: int | None) -> None:
        self._temporary = directory is None
        self._creator = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix=f"emq-{self.name}-")) if directory is None else directory
        self.directory = self.directory.absolute()
        self.directory.mkdir(private_files.DIRECTORY_MODE, parents=True, exist_ok=True)
        self.port = free_port() if port is None else port
        self.log = self.directory / f"{self.name}.log"
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """The address for clients; a restart does not change the address."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """Return the program and arguments that run the server in the foreground; may first prepare the directory."""
        raise NotImplementedError

    def _greets(self, connection: socket.socket) -> bool:
        """Return whether the server behind a fresh connection is ready for clients."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        if self._process is None:
            raise ServerFailed(f"{self.name} was never started; call restart() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def started(self) -> Self:
        """Start the server for the first time and return it; close it again if the start fails."""
        try:
            self.restart()
        except BaseException:
            self.close()
            raise
        return self

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port and data; return once the server replies.

        Raises:
            ServerFailed: the server did not start, or another process took its port meanwhile.
        """
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Do as `restart` does, but return before the server replies: for servers that wait for each other."""
        self.stop()
        _require_free(self.port, self.name)
        self._process = self._spawn(self._command())

    def await_ready(self) -> None:
        """Return once the server replies. Raise `ServerFailed` if it ends, or does not reply in `START_TIMEOUT_S`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if not self.running:
                raise ServerFailed(f"{self.name} ended with status {self.wait()} at start:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {START_TIMEOUT_S:g} s:\n{self._log_tail()}")
            time.sleep(_PROBE_PAUSE_S)

    def stop(self) -> None:
        """End the server in good order, and by force after `STOP_TIMEOUT_S` seconds. Safe to repeat."""
        if self._process is None or not self.running:
            return
        self._process.send_signal(self._stop_signal)
        self._process.send_signal(signal.SIGCONT)  # a paused process gets the stop signal only when it continues
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """Stop the server as `stand_still` does. Its children go on."""
        stand_still(self.pid)

    def resume(self) -> None:
        """Let a paused server go on. Safe to repeat."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the server and its children at once, as a power cut would; return when all are gone. Safe to repeat."""
        if self._process is None or not self.running:
            return
        self.pause()  # a stopped server makes no more children while we list them
        with contextlib.ExitStack() as stack:
            handles = _child_handles(self.pid, stack)
            self._process.kill()
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            self._process.wait()
            for handle in handles:
                select.select([handle], [], [], STOP_TIMEOUT_S)

    def close(self) -> None:
        """Stop the server, and remove its directory if the directory is temporary. Safe to repeat."""
        atexit.unregister(self.close)
        if os.getpid() != self._creator:  # a forked child that exits must not stop its parent's server
            return
        self.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def wait(self) -> int:
        """Wait until the server ends by itself or by another process; return its exit status, 0 if never started."""
        if self._process is None:
            return 0
        # Not `Popen.wait`: a signal that comes just before it blocks would wait for the next signal.
        while (status := self._process.poll()) is None:
            time.sleep(LOOK_S)
        return status

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # The server gets its own session: Ctrl-C in a terminal reaches the program that uses the server, and that
            # program stops the server.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT_S) as connection:
                return self._greets(connection)
        except OSError:
            return False

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


def stand_still(pid: int) -> None:
    """Stop a child of this process with SIGSTOP; return once its last thread stands still, or once it has ended.

    The signal alone is not enough: on a busy machine, threads that it has not reached yet still serve requests.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


_given: set[int] = set()
"""Ports that `free_port` has found in this process. It finds none of them again: their servers may not listen yet."""


def free_port() -> int:
    """Return a TCP port on which nobody listens now, below the range that the kernel uses for outgoing connections.

    Inside that range, any client's connection could take the port while the server is down. A client that keeps
    trying the dead port can even end up connected to itself.
    """
    try:
        lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest_outgoing = 32768
    top = max(lowest_outgoing, 20_000)
    # Who starts servers at the same moment, here or in another process, must not find the port of one that will listen.
    mine = top - 10_000 + os.getpid() % 40 * 250
    for port in (*random.sample(range(mine, mine + 250), 250), *random.sample(range(top - 10_000, top), 200)):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise ServerFailed(f"450 ports of {LOOPBACK} below {top} are all in use; stop what uses them")


def carried(package: str, pattern: str) -> str | None:
    """Return the last program in a package that matches the pattern. Do not import the package: imports run code."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    programs = sorted(Path(places[0]).glob(pattern)) if places else []
    return str(programs[-1]) if programs else None


def run_as(user: str | None, death_signal: str) -> list[str]:
    """Return a prefix for a command: the command dies with this process, and root's command runs as `user`."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if user is not None:
            raise ServerMissing("PostgreSQL does not run as root; run as another user, or install util-linux (setpriv)")
        return []
    prefix = [setpriv]
    if user is not None:
        group = str(pwd.getpwnam(user).pw_gid)
        prefix += ["--reuid", user, "--regid", group, "--clear-groups"]
        prefix += ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    if threading.current_thread() is threading.main_thread():
        prefix += ["--pdeathsig", death_signal]
    return prefix if len(prefix) > 1 else []


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _require_free(port: int, name: str) -> None:
    if not 1 <= port <= 65535:
        raise ServerFailed(f"port {port} for {name} is out of range; give 1 to 65535")
    if not _is_free(port):
        raise ServerFailed(f"port {port} of {LOOPBACK} is in use; stop what listens there, or give {name} another port")


def _child_handles(pid: int, stack: contextlib.ExitStack) -> list[int]:
    """Return a handle for each child, readable when the child has ended; the stack closes the handles."""
    handles = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(int(child)))
                stack.callback(os.close, handles[-1])
    return handles
