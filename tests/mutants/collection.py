"""All mutants, by subsystem."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from mutants import (
    allocation,
    buckets,
    checking,
    counting,
    dispatch,
    families,
    fetching,
    moving_keys,
    offsets,
    ownership,
    producing,
    services,
    spark_source,
    stores,
)
from mutants.mutant import Mutant

SUBSYSTEMS: Mapping[str, Sequence[Mutant]] = {
    "counting": counting.MUTANTS,
    "dispatch": dispatch.MUTANTS,
    "offsets": offsets.MUTANTS,
    "fetching": fetching.MUTANTS,
    "spark_source": spark_source.MUTANTS,
    "moving_keys": moving_keys.MUTANTS,
    "ownership": ownership.MUTANTS,
    "allocation": allocation.MUTANTS,
    "buckets": buckets.MUTANTS,
    "producing": producing.MUTANTS,
    "families": families.MUTANTS,
    "services": services.MUTANTS,
    "stores": stores.MUTANTS,
    "checking": checking.MUTANTS,
}


def chosen(patterns: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose subsystem or name matches one of the patterns; all mutants if there is no pattern."""
    return [
        mutant
        for subsystem, mutants in SUBSYSTEMS.items()
        for mutant in mutants
        if not patterns
        or any(fnmatch.fnmatchcase(subsystem, p) or fnmatch.fnmatchcase(mutant.name, p) for p in patterns)
    ]
