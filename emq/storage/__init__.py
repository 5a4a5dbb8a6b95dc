"""The protocols that a store implements, the records that pass through them, and opening a store by its URL."""
