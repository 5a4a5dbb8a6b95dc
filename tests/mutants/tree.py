"""A copy of the tree, in which mistakes are planted and tests are run."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mutants.mutant import ROOT, SEEDS, SIMULATION, Mutant
from support import coverage_map
from support.python_path import python_path

LEFT_OUT = (".git", ".venv", ".hypothesis", ".*_cache", "__pycache__", "dist", "emq-data")

TOO_LONG = "took longer than"

LONGEST_S = 180.0
"""Of one test with a mistake in the code; one that hangs is not caught."""

INTERRUPTED_S = 30.0
"""How long an interrupted run has to stop its servers."""


class Run(NamedTuple):
    """What came of running tests.

    Attributes:
        passed: ids of tests that passed.
        failed: ids of tests that failed by themselves: an assertion, or an error inside the test.
        trouble: why nothing can be concluded, such as an error of a fixture, a skipped test or a time-out; or "".
    """

    passed: Sequence[str]
    failed: Sequence[str]
    trouble: str = ""


class Tree:
    """The copy. One mistake at a time.

    Args:
        root: what is copied.
        target: an empty directory to copy it to.
    """

    def __init__(self, root: pathlib.Path, target: pathlib.Path) -> None:
        self._copy = target / "tree"
        self._report = target / "report.xml"
        shutil.copytree(root, self._copy, ignore=shutil.ignore_patterns(*LEFT_OUT))

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Have the mistake in the code. Raises `Misfit` if it does not fit in any more."""
        path = self._copy / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.planted(text), encoding="utf-8")
        # Python knows bytecode by the second and the size of its source, which may be the same.
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def text(self, file: str) -> str:
        """Return what a file holds."""
        return (self._copy / file).read_text(encoding="utf-8")

    def coverage(self, files: Sequence[str], tests: Sequence[str]) -> coverage_map.Lines:
        """Run tests and return which lines of the files each of them runs.

        Raises:
            RuntimeError: a test fails, or they take too long.
        """
        found = self._copy / "coverage_map.json"
        added = {coverage_map.FILE: str(found), coverage_map.OVER: " ".join(files)}
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "support.coverage_map", *tests]
        code = self._call(command, self._copy, True, LONGEST_S * 10, added)
        if code != 0:
            raise RuntimeError(f"{' '.join(tests)}: pytest ended with {code} without a mistake")
        return coverage_map.read(found)

    def run(
        self,
        tests: Sequence[str],
        *,
        keep_bytecode: bool = False,
        longest_s: float = LONGEST_S,
        stop: bool | None = None,
    ) -> Run:
        """Run tests in the copy.

        Args:
            stop: whether to stop at the first test that fails (default: if there is a mistake in the copy, so that
                `keep_bytecode` is False).
        """
        if list(tests) == [SIMULATION]:
            return self._simulate(longest_s)
        self._report.unlink(missing_ok=True)
        options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        options += ["-o", "junit_family=xunit1", f"--junitxml={self._report}"]  # the family that names files
        if stop if stop is not None else not keep_bytecode:
            options.append("-x")
        code = self._call(["-m", "pytest", *options, *tests], self._copy, keep_bytecode, longest_s)
        if code is None:
            return Run((), (), f"{TOO_LONG} {longest_s:g} s")
        if code not in (0, 1):
            return Run((), (), f"pytest ended with {code}: the tests could not be collected or run")
        return self._read()

    def _read(self) -> Run:
        passed, failed, trouble = [], [], ""
        for case in ET.parse(self._report).iter("testcase"):
            name = _id_of(case)
            found = {child.tag: child.get("message") or "" for child in case}
            if "failure" in found:
                failed.append(name)
            elif what := found.keys() & {"error", "skipped"}:
                trouble = trouble or f"{name}: {min(what)}: {found[min(what)][:200]}"
            else:
                passed.append(name)
        return Run(passed, failed, trouble)

    def _simulate(self, longest_s: float) -> Run:
        command = ["-m", "mutants.seeds", str(SEEDS)]
        code = self._call(command, self._copy / "tests", False, longest_s)
        if code not in (0, 1):
            return Run((), (), "took too long" if code is None else f"the simulation ended with {code}")
        return Run((), (SIMULATION,)) if code else Run((SIMULATION,), ())

    def _call(
        self,
        command: Sequence[str],
        cwd: pathlib.Path,
        keep_bytecode: bool,
        longest_s: float,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> int | None:
        """The exit status of a Python that imports the copy; None if it took too long."""
        added = {
            "PYTHONPATH": python_path(self._copy, self._copy / "tests"),
            "EMQ_REQUIRE_SERVERS": "1",
            "EMQ_SHRINK": "0",
            "PYTHONHASHSEED": "0",
            **more,
        }
        if not keep_bytecode:
            added["PYTHONDONTWRITEBYTECODE"] = "1"
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env={**os.environ, **added},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(longest_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _id_of(case: ET.Element) -> str:
    """The id of a test, as pytest takes it."""
    file, classes = case.get("file", ""), case.get("classname", "")
    inside = classes.removeprefix(file.removesuffix(".py").replace("/", ".")).replace(".", "::")
    return f"{file}{inside}::{case.get('name')}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it stop what it started; kill it if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + INTERRUPTED_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def copied(root: pathlib.Path = ROOT) -> Iterator[Tree]:
    """A copy in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="emq-mutants-") as target:
        yield Tree(root, pathlib.Path(target))
