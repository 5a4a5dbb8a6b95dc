"""What the HTTP API, the dashboard and the command line do with tenants, endpoints and messages. No HTTP in here."""
