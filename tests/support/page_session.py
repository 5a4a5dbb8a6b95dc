"""Runs the blocks of one page, as a reader would: `python -m support.page_session PAGE` in an empty directory.

Ends with 1 and says why on standard error at the first block that fails.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import multiprocessing
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path
from types import CodeType
from typing import Any

import emq
from support import page_blocks

PATIENCE_S = 20.0
"""For what a page says that a command will print."""
READING = (
    "lag",
    "stats",
    "trace",
    "hosts",
    "plan",
    "dead list",
    "dead show",
    "schedule list",
    "topic list",
    "offsets show",
    "push deliveries",
    "push replays",
    "scheduling pools",
    "scheduling show",
    "scheduling status",
    "scheduling verify",
    "scheduling what-if",
)
"""Commands that change nothing: they are repeated until they print what the page says, as a reader would."""

_PROCESSES = multiprocessing.get_context("forkserver")


class Wrong(Exception):
    """A block does not do what the page says."""


class Page:
    """The session of a reader with one page."""

    def __init__(self, page: Path) -> None:
        self.blocks = page_blocks.blocks(page)
        program = types.ModuleType("__page__")
        sys.modules["__page__"] = program  # dataclasses and others look for the module of a class
        self.names: dict[str, Any] = vars(program)
        self.background: list[Background] = []
        self.ports: dict[str, str] = {}
        self.known: dict[str, str] = {}

    def run(self) -> None:
        """Run all blocks. Raises `Wrong` for the first that fails."""
        try:
            with asyncio.Runner() as runner:
                for block in self.blocks:
                    try:
                        self._run(block, runner)
                    except Exception as exc:
                        raise Wrong(f"line {block.line}: {_said(exc)}\n{block.text}") from exc
        except Wrong:
            for process in self.background:
                process.kill()
            raise
        self._end_background()

    def _run(self, block: page_blocks.Block, runner: asyncio.Runner) -> None:
        text = self._with_ports(block.text)
        if block.skipped:
            return
        if block.title:
            self._write(block.title, text)
        elif block.language == "python":
            self._program(block, text, runner)
        elif block.language in ("console", "bash"):
            commands = block.commands()
            for command in commands:
                last = command is commands[-1]
                self._command(command, block.mark if last or block.mark.startswith("background") else "")

    def _with_ports(self, text: str) -> str:
        """Return the text with a free port for each that the page names, so that pages run side by side."""

        def port(match: re.Match[str]) -> str:
            if match[1] not in self.ports:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    self.ports[match[1]] = str(free.getsockname()[1])
            return self.ports[match[1]]

        return re.sub(r"\b(80[0-9]{2})\b", port, text)

    def _write(self, title: str, text: str) -> None:
        file = Path(title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.suffix == ".py":
            compile(text, title, "exec")
            process = _PROCESSES.Process(target=_imported, args=(file.stem, dict(os.environ), os.getcwd()))
            process.start()
            process.join()
            if process.exitcode:
                raise Wrong(f"{title} cannot be imported, or a function in it fails")

    def _program(self, block: page_blocks.Block, text: str, runner: asyncio.Runner) -> None:
        wanted = block.mark.removeprefix("raises ") if block.mark.startswith("raises ") else None
        before = set(self.names)
        code = compile("\n" * (block.line - 1) + text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            runner.run(self._executed(code, before))
        except Exception as exc:
            if type(exc).__name__ != wanted:
                raise
        else:
            if wanted:
                raise Wrong(f"the block does not raise {wanted}")

    async def _executed(self, code: CodeType, before: set[str]) -> None:
        result = eval(code, self.names)
        if inspect.isawaitable(result):
            await result
        await _called({name: value for name, value in self.names.items() if name not in before})

    def _command(self, command: page_blocks.Command, mark: str) -> None:
        line = self._real(command.line)
        if line.startswith("export "):
            for word in shlex.split(line)[1:]:
                name, _, value = word.partition("=")
                os.environ[name] = value
            return
        if mark.startswith("background"):
            if mark == "background again":
                self._end_background()
            self.background.append(Background(line, len(self.background)))
            self.known.update(self.background[-1].wait_for(command.printed))
            return
        code = int(mark.removeprefix("exit ")) if mark.startswith("exit ") else 0
        repeatable = any(re.match(rf"emq {words}\b", line) for words in READING)
        until = time.monotonic() + (PATIENCE_S if repeatable else 0)
        while True:
            ended, output = _run(line)
            why = f"ended with {ended}, not {code}"
            if ended == code:
                try:
                    self.known.update(page_blocks.compared(command.printed, output))
                    return
                except page_blocks.Missing as exc:
                    why = str(exc)
            if time.monotonic() > until:
                raise Wrong(f"$ {line}\n{why}; it printed:\n{_end(output)}")
            time.sleep(0.2)

    def _real(self, text: str) -> str:
        """Return a command with the ids and addresses of this run instead of those in the page."""
        for shown, real in self.known.items():
            text = text.replace(shown, real)
        return self._with_ports(text)

    def _end_background(self) -> None:
        while self.background:
            self.background.pop().end()


class Background:
    """A command that runs until the end of the page, or until it is started again."""

    def __init__(self, line: str, number: int) -> None:
        self.line = line
        self._file = Path(f".background-{number}")
        self._file.unlink(missing_ok=True)
        if _is_emq(line):
            self._process: Any = _emq(line, self._file)
        else:
            words = f"exec env {line}" if re.match(r"[A-Z_]+=", line) else f"exec {line}"
            with self._file.open("w") as output:
                self._process = subprocess.Popen(["bash", "-c", words], stdout=output, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._file.read_text() if self._file.exists() else ""

    def wait_for(self, printed: list[str]) -> dict[str, str]:
        """Wait until the command has printed these lines; return as `page_blocks.compared`."""
        until = time.monotonic() + PATIENCE_S
        while True:
            running = _runs(self._process)
            try:
                return page_blocks.compared(printed, self.output)
            except page_blocks.Missing as exc:
                if time.monotonic() > until or not running:
                    raise Wrong(f"$ {self.line}\n{exc}; it printed:\n{_end(self.output)}") from None
            time.sleep(0.05)

    def end(self) -> None:
        """End the command as Ctrl-C does; raise `Wrong` if it does not end, or says that it failed."""
        if _runs(self._process):
            os.kill(self._process.pid, signal.SIGINT)
        if isinstance(self._process, subprocess.Popen):
            code: int | None = self._process.wait(PATIENCE_S)
        else:
            self._process.join(PATIENCE_S)
            code = self._process.exitcode
        if code not in (0, 130, -signal.SIGINT):
            self.kill()
            raise Wrong(f"$ {self.line}\nended with {code} at Ctrl-C; it printed:\n{_end(self.output)}")

    def kill(self) -> None:
        """End the command at once."""
        if _runs(self._process):
            os.kill(self._process.pid, signal.SIGKILL)


def _runs(process: Any) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()


def _is_emq(line: str) -> bool:
    return line.startswith("emq ") and not re.search(r"[|<>&;$`]", line.partition(" #")[0].replace("\\\n", " "))


def _run(line: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed."""
    if not _is_emq(line):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr
    file = Path(".output")
    process = _emq(line, file)
    process.join(60)
    return process.exitcode or 0, file.read_text()


def _emq(line: str, output: Path) -> Any:
    """Start a command of `emq` in a process that has its imports already."""
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    process = _PROCESSES.Process(target=_entered, args=(words, str(output), dict(os.environ), os.getcwd()))
    process.start()
    return process


def _entered(words: list[str], output: str, environ: dict[str, str], directory: str) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    sys.argv = words
    sys.path.insert(0, directory)
    import emq_cli

    emq_cli.main()


def _imported(module: str, environ: dict[str, str], directory: str) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, directory)
    asyncio.run(_called(vars(importlib.import_module(module))))


async def _called(names: dict[str, Any]) -> None:
    """Call each function `async def name(app)` with an open app."""
    for function in names.values():
        if inspect.iscoroutinefunction(function) and list(inspect.signature(function).parameters) == ["app"]:
            async with emq.App() as app:
                await function(app)


def _end(output: str) -> str:
    return "\n".join(output.splitlines()[-30:])


def _said(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, Wrong) else "".join(traceback.format_exception(exc)[-4:])


def main() -> int:
    _PROCESSES.set_forkserver_preload(["emq_cli.commands", "emq.app", "emq_stores.sql"])
    os.environ["COLUMNS"] = "100"
    try:
        Page(Path(sys.argv[1])).run()
    except Wrong as exc:
        sys.stderr.write(f"{sys.argv[1]}, {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
