from emq_testing.contract.seals import *  # noqa: F403
