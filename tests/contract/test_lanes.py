from emq_testing.contract.lanes import *  # noqa: F403
