"""The same work on EMQ and on what people use today, side by side on one machine."""
