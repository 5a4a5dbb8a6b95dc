"""Several Redis servers that work together: a cluster, or a master with sentinels. Started as `emq_servers` does."""
