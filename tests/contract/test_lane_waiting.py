from emq_testing.contract.lane_waiting import *  # noqa: F403
