#!/bin/sh
# Make one cluster of the Valkey nodes given as HOST:PORT, three masters with a replica each, unless they are one; then
# wait until every node serves. Safe to repeat. The password is in VALKEYCLI_AUTH.
set -eu

ask() { # HOST:PORT COMMAND...
    place=$1
    shift
    valkey-cli -h "${place%:*}" -p "${place##*:}" "$@"
}

# A node that has met others keeps them in its volume: then there is a cluster, though it may take a moment to agree.
if ask "$1" cluster info | grep -q '^cluster_known_nodes:1[^0-9]*$'; then
    valkey-cli --cluster create "$@" --cluster-replicas 1 --cluster-yes
fi
for node in "$@"; do
    until ask "$node" cluster info | grep -q '^cluster_state:ok'; do
        sleep 1
    done
done
echo "the cluster serves"
