"""Calls of handlers and publishes: typed payloads, middleware, dependencies. Apps without these run none of this."""
