"""The commands, which join those of `emq`."""
