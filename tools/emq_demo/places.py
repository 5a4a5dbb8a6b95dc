"""Where the data of a run lies, and the server that a run on Redis needs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import emq_servers as servers
from emq.runtime import errors, private_files

STORES = ("sqlite", "redis", "memory")
_DATABASE = "emq.db"
_REDIS = "redis"


class Place(NamedTuple):
    """The places of one run's data.

    Attributes:
        store: URL of the store.
        database: URL of the database for catalog and checkpoints; None for the store's own.
        trail: directory of the trail.
        kept: the directory that holds all of them, if it stays after the run; else None.
    """

    store: str
    database: str | None
    trail: Path
    kept: Path | None

    @property
    def outlives_app(self) -> bool:
        """True if an app that is opened after the run finds the run's data."""
        return self.store != "memory:"


@contextlib.contextmanager
def new(store: str, keep: str | Path | None) -> Iterator[Place]:
    """Make the places of a run.

    Args:
        store: one of `STORES`; a server is started for "redis".
        keep: a new or empty directory that stays; None for a temporary one, which is removed at the end of the block.

    Raises:
        InvalidSettings: the store is not known, or the directory cannot be used.
    """
    if store not in STORES:
        raise errors.InvalidSettings(f"store {store!r} is not known to the demo; use {', '.join(STORES)}")
    with contextlib.ExitStack() as stack:
        if keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="emq-demo-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        else:
            directory = _empty_directory(Path(keep))
        kept = None if keep is None else directory
        if store == "memory":
            yield Place("memory:", None, directory / "trail", kept)
        else:
            yield stack.enter_context(_on_disk(directory, kept, redis=store == "redis"))


@contextlib.contextmanager
def kept(directory: Path) -> Iterator[Place]:
    """Return the places of a run that was kept.

    Raises:
        InvalidSettings: the directory has no run that can go on.
    """
    directory = directory.absolute()
    if not (directory / _DATABASE).is_file():
        raise errors.InvalidSettings(
            f"directory {str(directory)!r} has no run that can go on; name one that emq demo --keep made, "
            "with --store sqlite or redis"
        )
    with _on_disk(directory, directory, redis=(directory / _REDIS).is_dir()) as place:
        yield place


@contextlib.contextmanager
def _on_disk(directory: Path, kept: Path | None, *, redis: bool) -> Iterator[Place]:
    url, trail = f"sqlite:///{directory / _DATABASE}", directory / "trail"
    if not redis:
        yield Place(url, None, trail, kept)
        return
    with servers.start_redis(directory=directory / _REDIS, appendonly=kept is not None) as server:
        yield Place(server.url, url, trail, kept)


def _empty_directory(path: Path) -> Path:
    try:
        path.mkdir(private_files.DIRECTORY_MODE, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise errors.InvalidSettings(f"directory {str(path)!r} is not empty; name a new one")
    except OSError as exc:
        raise errors.InvalidSettings(f"cannot keep anything in {str(path)!r} ({exc.strerror}); name another") from exc
    return path.absolute()
