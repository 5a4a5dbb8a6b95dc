"""What hypothesis tries: the same in each run, so that a change is judged by its own faults. `make fuzz` tries others.

On one version of Python and of hypothesis, that is; and what failed last on this machine is tried first. Hypothesis
also tries constants that it finds in the source of all modules that are loaded: others in each selection of tests, and
each worker would parse the whole source for them. Only `make fuzz` does so.
"""

from __future__ import annotations

import os

from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers

from emq_testing.contract.chance import FUZZ

SHRINKS = os.environ.get("EMQ_SHRINK") != "0"
"""True to make a failing example small, which takes long and is useless if you only ask whether a test fails."""


def load_profile() -> None:
    """Load the profile. Call this before any test is imported, because settings take missing values from it then."""
    phases = tuple(Phase) if SHRINKS else (Phase.explicit, Phase.reuse, Phase.generate)
    settings.register_profile("emq", derandomize=not FUZZ, phases=phases, deadline=None)  # machines may be busy
    settings.load_profile("emq")
    if not FUZZ:
        providers.is_local_module_file = lambda path: False  # type: ignore[attr-defined]
