"""The state of the topics, groups and queues that a host owns.

A host owns groups; a topic is divided into groups, and a group has one queue for each priority. A group of a sorted
topic has a slot instead of queues. A group's lane holds its delayed messages, retries and dead letters.
"""
