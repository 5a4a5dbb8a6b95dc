"""What an operator asks and does: administration, dead letters, recall, lag, what is planned, trace."""
