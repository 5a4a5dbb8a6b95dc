"""The coordination tree: a tree of small nodes through which the hosts of a cluster meet.

`protocol` says what a tree does. `memory` and `database` are two trees; `emq.allocation.zookeeper` is the third.

Terms: a *client* is one process's access to the tree. A *session* is the time in which the tree counts a client as
alive. An *ephemeral* node goes when the session that made it ends. A *watch* reports the next change of a node.
"""
