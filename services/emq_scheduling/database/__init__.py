"""The tables of scheduling, and how they are set up and migrated."""
