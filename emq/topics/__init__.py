"""What a topic is, how its capacity is split, and where topics are kept."""
