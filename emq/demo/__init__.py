"""The demonstration `emq demo`: real flights as messages, local receivers as tenants. Needs the extra `emq[demo]`.

Flights are published to one topic for each airline (a tenant), and a host in the same process sends each message to the
airline's receiver by HTTP. In the second half, four airlines are in trouble. At the end a proof judges every promise,
also that the other airlines felt nothing.
"""
