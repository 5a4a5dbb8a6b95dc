from emq_testing.contract.sorted import *  # noqa: F403
