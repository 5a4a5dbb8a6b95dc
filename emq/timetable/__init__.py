"""Messages for later: delays by level, and schedules that publish again and again.

delay_levels         names for delays
cron                 computes the times at which a cron expression fires
schedule             a schedule and its state, as stored with its message
occurrences          computes due occurrences of a schedule and its next state; pure functions
merged_occurrences   occurrences in topics that merge within a time range
firing               the loop that publishes due occurrences of this host's schedules

`emq.observe.planned` lists and recalls the messages and schedules that wait in a topic's lanes.

Each delayed message waits in the lane of its group. (A lane holds a group's delayed messages and retries by due time.)
So the message moves with the group, outlives crashes and runs under the group's quota. A schedule is one entry of a
lane; each of its occurrences is an entry of its own.
"""
