"""What users import from `emq_scheduling`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import emq_scheduling as scheduling


def test_every_public_name_is_there() -> None:
    assert {name: getattr(scheduling, name).__name__ for name in scheduling.__all__} == {
        name: name for name in scheduling.__all__
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Scheduler1"):
        _ = scheduling.Scheduler1


def test_the_package_itself_loads_no_database() -> None:
    program = "import sys, emq_scheduling; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
