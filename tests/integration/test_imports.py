"""What is loaded by importing a part of EMQ: nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"sqlalchemy", "redis", "aiohttp", "pyarrow", "alembic", "uvloop", "emq_stores"}


def test_help_loads_none_of_what_only_commands_need() -> None:
    # Beyond what importing the package itself loads.
    code = (
        "import sys, emq; before = set(sys.modules); import emq_cli.commands; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)
    assert "typer" in loaded


def test_the_core_does_not_need_pyarrow() -> None:
    code = "import sys, emq.trail, emq.trail.events; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_module_of_the_trail_makes_no_array_when_it_is_imported() -> None:
    """Arrow imports pandas, where it is installed, for the first array: half a second and 90 MB."""
    code = "import sys, emq_trace.trail_lookup, emq_proof.proof, emq.trail.writer; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
