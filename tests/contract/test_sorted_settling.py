from emq_testing.contract.sorted_settling import *  # noqa: F403
