from emq_testing.contract import *  # noqa: F403
