"""What became of one message: its life by the trail, where it is now by the store, and why it waits.

`look_up` (in `emq.inspect.trace.lookup`) puts it together; `why` (in `emq.inspect.trace.waiting_reasons`) is the
reasoning, free of any store.
"""
