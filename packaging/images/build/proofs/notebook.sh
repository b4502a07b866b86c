# Runs in the notebook image as its entrypoint's command, as a user ID without
# a name, with an empty home and no network. $1 is first or again: the second
# time is a new container with the same home.
set -eu
fail() { echo "proof: $*" >&2; exit 1; }

[ "$(whoami)" = alice ] || fail "whoami says $(whoami)"
[ "$(id -gn)" = alice ] || fail "the group has no name"
[ "$PWD" = /home/alice ] || fail "starts in $PWD"
[ ! -w /opt/lab ] && [ ! -w /usr/local/lib ] || fail "the environment can be written to"
for program in git nano vi tmux gcc g++ make ssh curl less ps rsync jupyter pip python; do
  command -v "$program" >/dev/null || fail "there is no $program"
done
[ "$(TZ=America/New_York date -d 2026-01-15T12:00Z +%Z%z)" = EST-0500 ] || fail "there are no time zones"
python -c 'from zoneinfo import ZoneInfo; ZoneInfo("Europe/Berlin")' || fail "Python has no time zones"
[ "$(git config user.name) $(git config user.email)" = 'Alice "A" Liddell alice@example.org' ] || fail "git does not know the person"
[ "$(HOME=/tmp/other; mkdir -p $HOME; export HOME; git config --global user.name Own; git config user.name)" = Own ] || fail "git does not take the person's own name"
# OpenSSH refuses users that it cannot look up.
ssh -V 2>/dev/null && ssh -o ConnectTimeout=1 -p 1 127.0.0.1 2>&1 | grep -q 'refused' || fail "ssh does not know the user"
bash -lc 'command -v jupyter && case $PATH in "$HOME/.local/bin:"*) ;; *) exit 1 ;; esac' >/dev/null || fail "a login shell's PATH is wrong"
printf '#include <Python.h>\n#include <cstdio>\nint main() { std::puts(PY_VERSION); }\n' >/tmp/a.cc
g++ $(python3-config --includes) -o /tmp/a /tmp/a.cc && /tmp/a >/dev/null || fail "the compiler does not work"
/opt/lab/bin/jupyterhub-singleuser --version
python -c 'import pynvml' || fail "no pynvml"
/opt/lab/bin/python -c 'import site, sys; sys.exit(bool(site.ENABLE_USER_SITE))' || fail "the server looks into homes"
printf '{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[{"cell_type":"code","id":"one","metadata":{},"source":"import os; print(os.getcwd())","outputs":[],"execution_count":null}]}' >/tmp/proof.ipynb
GPULAB_JOB_ID=7 run-notebook /tmp/proof.ipynb | grep -qx /tmp && grep -q '/tmp' /tmp/proof.7.ipynb || fail "a notebook does not run as a job"
/opt/lab/bin/python /proof/notebook.py "$1"
