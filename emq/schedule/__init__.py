"""Messages for later: delays by level, and schedules that publish again and again.

delay_levels         names for delays
cron                 at which times a cron expression fires
schedule             a schedule and its state, as it travels with its message
occurrences          what is due of a schedule, and how it goes on; pure
merged_occurrences   occurrences in topics that merge within a time range
firing               the loop that publishes what is due of the schedules of this host

`emq.inspect.planned` lists what waits in a topic's lanes, and takes it back.

Everything delayed waits in the lane of its group, so it moves with the group, outlives crashes and runs under the
group's quota. A schedule is one entry of a lane, each occurrence of it an entry of its own.
"""
