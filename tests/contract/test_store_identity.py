from emq_testing.contract.store_identity import *  # noqa: F403
