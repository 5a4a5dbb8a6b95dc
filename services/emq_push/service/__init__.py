"""The operations of the HTTP API, the dashboard and the command line on tenants, endpoints and messages.

No HTTP here.
"""
