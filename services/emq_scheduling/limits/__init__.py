"""Limits of resources: counts their use, finds room, and keeps the use through a crash."""
