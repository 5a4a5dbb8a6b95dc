"""Places that the topics of a host share: messages in flight, bytes, threads, connections."""
