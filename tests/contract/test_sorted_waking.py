from emq_testing.contract.sorted_waking import *  # noqa: F403
