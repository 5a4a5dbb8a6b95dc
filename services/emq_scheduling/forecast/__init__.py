"""Forecasts of a pool: a fluid simulation on a virtual clock."""
