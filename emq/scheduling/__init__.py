"""Resource scheduling: tasks of many types on resources with limits of their own, the urgent first.

A user of the public API of `emq`. `docs/scheduling.md` is its page.
"""
