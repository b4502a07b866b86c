#!/bin/bash
# machine.sh boot|enter NAME ROOT [COMMAND...]
#
# boot: boots the Debian in ROOT with systemd, in a network namespace NAME and
# control groups of its own, again whenever it restarts, and ends when it is
# switched off. ROOT.pid names its keeper.
# enter: runs COMMAND on it.
set -euo pipefail
verb=$1 name=$2 root=$3
shift 3

join_groups() {
  for controller in /sys/fs/cgroup/*/; do echo $$ >"$controller/$name/cgroup.procs"; done
}

if [ "$verb" = enter ]; then
  first=$(pgrep -P "$(cat "$root.pid")" | head -n 1)
  [ -n "$first" ] || { echo "the machine does not run" >&2; exit 99; }
  join_groups
  exec nsenter -t "$first" -m -u -i -n -p -C -r -w \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
fi

if [ -z "${MACHINE_HAS_MOUNTS:-}" ]; then
  ip netns add "$name"
  ip -n "$name" link set lo up
  ip -n "$name" link add eth0 type veth peer name wire
  ip -n "$name" addr add 10.98.0.1/24 dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" link set wire up
  ip -n "$name" route add default via 10.98.0.254
  # systemd takes over the whole tree of groups that it sees.
  for controller in /sys/fs/cgroup/*/; do
    mkdir -p "$controller/$name"
    if [ -f "$controller/cpuset.cpus" ]; then
      cat "$controller/cpuset.cpus" >"$controller/$name/cpuset.cpus"
      cat "$controller/cpuset.mems" >"$controller/$name/cpuset.mems"
    fi
  done
  join_groups
  MACHINE_HAS_MOUNTS=1 exec unshare --mount --propagation slave "$0" "$verb" "$name" "$root"
fi
mkdir -p /run/systemd/nspawn
mount -t tmpfs nspawn /run/systemd/nspawn
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=1
while :; do
  systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --capability=all \
    --network-namespace-path="/run/netns/$name" --machine="$name" --bind=/dev/kmsg \
    --system-call-filter='@keyring bpf perf_event_open' --console=passive </dev/null &
  echo $! >"$root.pid"
  code=0
  wait $! || code=$?
  # A kernel that restarts has no groups; here those of the last boot are left.
  for controller in /sys/fs/cgroup/*/; do
    find "$controller/$name" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
  [ "$code" = 133 ] || exit "$code"
done
