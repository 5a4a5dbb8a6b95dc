"""All mutants, by subsystem."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from mutants import (
    allocation,
    api,
    budgets,
    calls,
    checking,
    counting,
    dispatch,
    families,
    fetching,
    levels,
    memory_store,
    moving_keys,
    offsets,
    ownership,
    producing,
    push_service,
    redis_log,
    redis_slots,
    scheduling_records,
    settling,
    slots,
    spark_source,
    sql_store,
    timekeeping,
)
from mutants.mutant import Mutant

SUBSYSTEMS: Mapping[str, Sequence[Mutant]] = {
    "counting": counting.MUTANTS,
    "budgets": budgets.MUTANTS,
    "dispatch": dispatch.MUTANTS,
    "settling": settling.MUTANTS,
    "calls": calls.MUTANTS,
    "offsets": offsets.MUTANTS,
    "fetching": fetching.MUTANTS,
    "slots": slots.MUTANTS,
    "spark_source": spark_source.MUTANTS,
    "moving_keys": moving_keys.MUTANTS,
    "ownership": ownership.MUTANTS,
    "levels": levels.MUTANTS,
    "allocation": allocation.MUTANTS,
    "producing": producing.MUTANTS,
    "families": families.MUTANTS,
    "push_service": push_service.MUTANTS,
    "api": api.MUTANTS,
    "scheduling_records": scheduling_records.MUTANTS,
    "timekeeping": timekeeping.MUTANTS,
    "memory_store": memory_store.MUTANTS,
    "sql_store": sql_store.MUTANTS,
    "redis_log": redis_log.MUTANTS,
    "redis_slots": redis_slots.MUTANTS,
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
