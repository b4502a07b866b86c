#!/bin/bash
# machine.sh wire|boot|enter|cut|gone NAME ROOT [COMMAND...]
#
# wire: makes two networks with a wire between them: NAME, of a machine at
# 10.98.0.1, and NAME-visitor, of somebody's computer at 10.98.0.254.
# boot: boots the Debian in ROOT with systemd, in the network NAME and control
# groups of its own, again whenever it restarts, and ends when it is switched
# off. ROOT.pid names its keeper. With its standard input it ends at once, and
# leaves nothing: then whoever booted it is no more.
# enter: runs COMMAND on it.
# cut: its power fails, and is back.
# gone: takes away what is left when it is off.
set -euo pipefail
verb=$1 name=$2 root=$3
shift 3

join_groups() {
  for controller in /sys/fs/cgroup/*/; do echo $$ >"$controller/$name/cgroup.procs"; done
}

first_process() {
  pgrep -P "$(cat "$root.pid" 2>/dev/null || echo 0)" | head -n 1
}

case $verb in
wire)
  for end in "$name" "$name-visitor"; do
    ip netns add "$end"
    ip -n "$end" link set lo up
  done
  ip -n "$name" link add eth0 type veth peer name eth0 netns "$name-visitor"
  ip -n "$name" addr add 10.98.0.1/24 dev eth0
  ip -n "$name-visitor" addr add 10.98.0.254/24 dev eth0
  for end in "$name" "$name-visitor"; do ip -n "$end" link set eth0 up; done
  ip -n "$name" route add default via 10.98.0.254
  exit
  ;;
enter)
  first=$(first_process)
  [ -n "$first" ] || { echo "the machine does not run" >&2; exit 99; }
  join_groups
  exec nsenter -t "$first" -m -u -i -n -p -C -r -w \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
  ;;
cut)
  touch "$root.again"
  kill -KILL "$(first_process)"
  exit
  ;;
gone)
  for end in "$name" "$name-visitor"; do ip netns delete "$end" 2>/dev/null || true; done
  rm -f "$root.pid" "$root.again"
  for _ in $(seq 100); do # its last processes may still be ending
    compgen -G "/sys/fs/cgroup/*/$name" >/dev/null || exit 0
    find /sys/fs/cgroup/*/"$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
    sleep 0.1
  done
  echo "control groups of $name are left:" /sys/fs/cgroup/*/"$name" >&2
  exit 1
  ;;
esac

if [ -z "${MACHINE_HAS_MOUNTS:-}" ]; then
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
{
  cat
  touch "$root.over"
  kill -KILL "$(first_process)"
} <&0 >/dev/null 2>&1 &
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
  # A kernel that restarts has no groups and no interfaces; here those of the last boot are left.
  for controller in /sys/fs/cgroup/*/; do
    find "$controller/$name" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
  for link in $(ip -n "$name" -oneline link show | sed 's/^[0-9]*: //; s/[:@ ].*//'); do
    case $link in lo | eth0) ;; *) ip -n "$name" link delete "$link" 2>/dev/null || true ;; esac
  done
  ip netns exec "$name" sh -c 'nft flush ruleset; ipset destroy' 2>/dev/null || true
  if [ -e "$root.over" ]; then
    echo $$ | tee /sys/fs/cgroup/*/cgroup.procs >/dev/null
    rm -rf "$root" "$root.over"
    exec "$0" gone "$name" "$root"
  fi
  [ "$code" = 133 ] || [ -e "$root.again" ] || exit "$code"
  rm -f "$root.again"
done
