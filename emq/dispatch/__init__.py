"""Dispatch: which message of which group may start now, and what follows when it ends."""
