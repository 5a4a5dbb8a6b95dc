"""Allocation decides which host consumes which groups.

Terms: a *member* is a host that takes part in the cluster. The *leader* is the member that makes the plan. A *plan*
gives each group to one host. A *generation* numbers a plan. An *epoch* is the generation in which a host got a group.
An *incarnation* is one session of one process of a host. A *lease* is the time until which a host may go on without
hearing from the cluster.
"""
