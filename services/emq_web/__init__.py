"""The HTTP API of the push service: tenants, endpoints, messages, keys.

`application` puts it together, with one file for each resource; `problems` says how errors look, `access` who may do
what, `limits` how much of it. `serving` runs it. Needs the extra `api`.
"""
