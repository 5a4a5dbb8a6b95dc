"""Messages for later: delays by level, schedules that publish again and again, and a book of what is planned.

levels   names for delays
cron     at which times a cron expression fires
spec     a schedule and its state, as it travels with its message
course   what is due of a schedule, and how it goes on; pure
firing   the loop that publishes what is due of the schedules of this host
book     what waits in a topic's lanes: look, and take back

Everything delayed waits in the lane of its group, so it moves with the group, outlives crashes and runs under the
group's quota. A schedule is one entry of a lane, each occurrence of it an entry of its own.
"""
