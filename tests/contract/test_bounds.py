from emq_testing.contract.bounds import *  # noqa: F403
