"""The demonstration: real flights as messages, local receivers as tenants. Needs the extra `demo`."""
