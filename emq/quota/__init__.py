"""Quotas: count how many messages a group may start in each second.

A group is a part of a topic and lives on exactly one host, so the counter in this host is the rate limit. A group's
*share* is the part of the topic's quota that the group gets (`emq.topics.shares`). With pacing *window* a group may
start its share in each second of the clock; with pacing *smooth* the starts are spread over the second.
"""
