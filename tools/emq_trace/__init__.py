"""The trace of one message: its life by the trail, its present place by the store, and the reasons why it waits.

`look_up` (in `emq_trace.lookup`) puts the trace together; `why` (in `emq_trace.waiting_reasons`) finds the reasons,
without a store. What operators see of a cluster is read here, too (`emq_trace.cluster_view`), and backlogs.
"""
