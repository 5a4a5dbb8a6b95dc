"""Planning decides which host gets which groups. Pure functions; no I/O.

Terms: a host's *fair share* is the part of all quotas that matches its weight. A host's *load* is the sum of its
groups' quotas. The *ring* is a circle on which each group meets the hosts in an order of its own.
"""
