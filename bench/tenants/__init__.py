"""The costs of many tenants: one family, and a topic of it for each tenant."""
