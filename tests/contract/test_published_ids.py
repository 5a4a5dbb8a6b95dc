from emq_testing.contract.published_ids import *  # noqa: F403
