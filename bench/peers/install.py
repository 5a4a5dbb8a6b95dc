"""Installs the peers into a folder of their own: `python -m bench.peers.install`, which `make bench-peers` does.

Python packages go into an environment for each peer, with pinned versions; those of npm into one folder; Debian's are
unpacked, and nothing is installed into the system. What is there already stays. The last line names what did not
install.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers import field, servers
from bench.peers.field import PLACE

PACKAGES = Path(__file__).parent / "packages"
GLIDE = "glide-mq"
TIMEOUT_S = 600.0


def main() -> int:
    for wanted in sorted(PACKAGES.glob("*.txt")):
        if wanted.stem != "debian":
            _python(wanted)
    _node()
    _debian()
    absent = [peer.name for peer in field.PEERS if peer.missing() or servers.missing(peer.server)]
    print(f"peers: in {PLACE}; not installed: {', '.join(absent) or 'none'}")
    return 0


def _python(wanted: Path) -> None:
    place = PLACE / "python" / wanted.stem
    ready = place / ".ready"
    if ready.exists() and ready.read_text() == wanted.read_text():
        return
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The files list all that is needed, so nothing is left to resolve.
    if _ran([sys.executable, "-m", "venv", str(place)]) and _ran([*pip, "--no-deps", "-r", str(wanted)]):
        ready.write_text(wanted.read_text())


def _node() -> None:
    place = PLACE / "node"
    place.mkdir(parents=True, exist_ok=True)
    wanted = (PACKAGES / "package.json").read_text()
    ready = place / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        (place / "package.json").write_text(wanted)
        if _ran(["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", "--prefix", str(place)]):
            ready.write_text(wanted)
    if not (place / "node_modules" / GLIDE).exists():
        # By itself: where the registry does not have it, the others are installed all the same.
        _ran(
            [
                "npm",
                "install",
                "--loglevel=error",
                "--no-save",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(place),
                GLIDE,
            ]
        )


def _debian() -> None:
    if not any(map(servers.missing, ("beanstalkd", "nats", "rabbitmq"))):
        return
    archives = servers.DEBIAN / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    for package in (PACKAGES / "debian.txt").read_text().split():
        if not list(archives.glob(f"{package}_*.deb")):
            _ran(["apt-get", "-qq", "download", package], archives)
        for archive in archives.glob(f"{package}_*.deb"):
            _ran(["dpkg", "-x", str(archive), str(servers.DEBIAN)])


def _ran(command: Sequence[str], directory: Path | None = None) -> bool:
    """Run a command; return whether it succeeded, and say so if it did not."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        failed = done.stderr.strip().splitlines()[-1:] or ["no reason given"] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = [str(error)]
    if failed:
        print(f"peers: {' '.join(command[:4])} ...: {failed[0]}", file=sys.stderr)
    return not failed


if __name__ == "__main__":
    sys.exit(main())
