"""The push service's tables: tenants, endpoints, messages, deliveries, attempts, keys, replays, the audit log.

They lie in the database of the catalog, beside its tables, with migrations of their own. The API writes tenants,
endpoints, messages and deliveries; hosts write attempts, and what each attempt changed in its delivery.
"""
