from emq_testing.contract.lost_messages import *  # noqa: F403
