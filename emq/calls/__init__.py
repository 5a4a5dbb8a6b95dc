"""Calls of handlers and publishes: typed payloads, middleware, dependencies. Nothing here runs where none is used."""
