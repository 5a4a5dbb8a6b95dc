"""The host is the process that consumes: it starts every loop by name, acquires groups and lets go of them.

A topic is divided into groups; the owner of a group is the one host that consumes the group. An epoch numbers the
ownerships of a group, so that the stores can refuse a former owner.
"""
