"""The offset audit: reconciles what was published, stored, delivered and dead."""
