from emq_testing.contract.sorted_models import *  # noqa: F403
