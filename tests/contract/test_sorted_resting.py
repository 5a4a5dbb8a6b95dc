from emq_testing.contract.sorted_resting import *  # noqa: F403
