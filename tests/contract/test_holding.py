from emq_testing.contract.holding import *  # noqa: F403
