from emq_testing.contract.waking import *  # noqa: F403
