from emq_testing.contract.log_control import *  # noqa: F403
