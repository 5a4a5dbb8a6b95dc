from emq_testing.contract.fold_sandbox import *  # noqa: F403
