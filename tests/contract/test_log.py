from emq_testing.contract.log import *  # noqa: F403
