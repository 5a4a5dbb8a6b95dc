from emq_testing.contract.sorted_merging import *  # noqa: F403
