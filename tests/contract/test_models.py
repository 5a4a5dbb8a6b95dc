from emq_testing.contract.models import *  # noqa: F403
