from emq_testing.contract.mixed_batches import *  # noqa: F403
