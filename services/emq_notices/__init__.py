"""Operational notices: what an operator should hear of becomes a message of the topic `emq.notices`.

`judging.py` finds troubles in what hosts tell of themselves. `opening.py` decides which troubles are news.
`watching.py` runs both on one host of the environment, and publishes. `notice.py` is a message.
"""
