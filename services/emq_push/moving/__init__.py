"""Moving in from other senders of webhooks: reads what their APIs tell, and makes tenants and endpoints of it."""
