"""Read the plan of a load from its TOML file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from emq.runtime import documents, errors
from emq_spark.load import plan_check
from emq_spark.load.ledger import RUN
from emq_spark.load.plan import Plan


def read(path: Path | str) -> Plan:
    """Read a plan from its file; complete its `name` and the path of a replay's file.

    Raises:
        InvalidSettings: the file cannot be read, or a value in it is invalid; the text names key and value.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is not UTF-8 text"
        raise errors.InvalidSettings(f"plan {str(path)!r} cannot be read ({reason}); name a TOML file") from exc
    plan = parse(text, str(path))
    if plan.name is None:
        plan = msgspec.structs.replace(plan, name=_name(path.stem))
    replay = plan.replay
    if replay is not None and not replay.file.startswith("demo:"):
        replay = msgspec.structs.replace(replay, file=str((path.parent / replay.file).resolve()))
        plan = msgspec.structs.replace(plan, replay=replay)
    return plan


def parse(text: str, source: str = "the plan") -> Plan:
    """Read a plan from its text.

    Args:
        source: name of the text for error texts.
    Raises:
        InvalidSettings: as for `read`.
    """
    document = documents.parsed(text, "toml", source, errors.InvalidSettings)
    plan = documents.converted(document, Plan, source, errors.InvalidSettings)
    plan_check.check(plan, source)
    return plan


def _name(stem: str) -> str:
    """Return a file's name, changed so that it may be part of a run's id."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in stem).strip("-_")[:40]
    return name if RUN.fullmatch(name) else "load"
