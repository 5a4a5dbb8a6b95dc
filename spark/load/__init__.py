"""The load generator: publishes a plan's messages, and keeps a ledger of them."""
