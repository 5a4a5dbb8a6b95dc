from emq_testing.contract.sorted_histories import *  # noqa: F403
