"""The load generator: it publishes the messages of a plan, and keeps a ledger of every publish and its outcome."""
