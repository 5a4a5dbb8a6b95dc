from emq_testing.contract.lane_priorities import *  # noqa: F403
