"""The state of the topics, groups and queues that a host owns."""
