"""A cluster of hosts in one process and in virtual time: the real code, seeded faults, and the promises checked.

process     a process that can be stopped and killed, within one event loop
network     the way between a host and its store and database: delays, lost answers, outages
evidence    the observations of handlers, stores and checkpoints
promises    the invariants that the evidence must fulfil
keepers     keep the data of the one store: memory, a real server or a real file
planting    faults for the scripts and statements of the real ones
schedule    the meaning of a seed: topics, hosts, and events with their times
cluster     carries a schedule out
run         one seed, from schedule to verdict
endless     finds the endless loop in a run that never ends
report      the text about a failure
__main__    many seeds, in several processes
"""
