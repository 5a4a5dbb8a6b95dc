"""Push isolation: one topic for each tenant, delivered to its endpoint by HTTP POST. A user of EMQ, not a part of it.

`endpoint` reads a tenant's endpoint from its topic, `headers` says what a request carries, `pusher` sends it, and
`verdict` decides what the answer means for the message. Needs the extra `push`.
"""
