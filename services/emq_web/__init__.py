"""The HTTP API of the push service: tenants, endpoints, messages, keys.

`application` puts it together, with one file for each resource; `problems` has the form of errors, `access` the rights
of keys, `limits` the bounds on requests. `serving` runs it. Needs the extra `api`.
"""
