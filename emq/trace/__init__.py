"""What became of one message: its life by the trail, where it is now by the store, and why it waits.

`look_up` (in `emq.trace.lookup`) puts it together; `why` (in `emq.trace.why`) is the reasoning, free of any store.
"""
