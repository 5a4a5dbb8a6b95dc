"""A cluster of hosts in one process and in virtual time: the real code, seeded faults, and the promises checked.

process     a process that can be stopped and killed, within one event loop
network     what lies between a host and its store and database: delays, lost answers, outages
evidence    what handlers saw, and what stores and checkpoints took
promises    what must hold of the evidence
keepers     what keeps the data of the one store: memory, a real server or a real file
planting    faults for the scripts and statements of the real ones
schedule    what a seed stands for: topics, hosts, and what happens when
cluster     makes it happen
run         one seed, from schedule to verdict
endless     what spins in a run that never ends
report      how a failure is told
__main__    many seeds, in several processes
"""
