"""The offset audit: it compares the messages that were published, stored, delivered and dead, and reports each gap.

The audit reads three sources. A *trail* holds the events that each host (and each producer, if it keeps one) recorded.
A *ledger* holds the publishes of a load run. A *view* holds the contents of store and database at one look. The audit
judges nine promises, each with a letter: `emq_spark.audit.findings.NAMES` lists them.
"""
