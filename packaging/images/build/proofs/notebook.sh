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
git config filter.lfs.smudge >/dev/null || fail "git does not know git-lfs"
[ "$(HOME=/tmp/other; mkdir -p $HOME; export HOME; git config --global user.name Own; git config user.name)" = Own ] || fail "git does not take the person's own name"
# OpenSSH refuses users that it cannot look up.
ssh -V 2>/dev/null && ssh -o ConnectTimeout=1 -p 1 127.0.0.1 2>&1 | grep -q 'refused' || fail "ssh does not know the user"
bash -lc 'command -v jupyter && case $PATH in "$HOME/.local/bin:"*) ;; *) exit 1 ;; esac' >/dev/null || fail "a login shell's PATH is wrong"
printf '#include <Python.h>\n#include <cstdio>\nint main() { std::puts(PY_VERSION); }\n' >/tmp/a.cc
g++ $(python3-config --includes) -o /tmp/a /tmp/a.cc && /tmp/a >/dev/null || fail "the compiler does not work"
for program in file git-lfs htop jq tree vim wget; do
  command -v "$program" >/dev/null || fail "there is no $program"
done
# What auditwheel's policies let wheels expect (policy/manylinux-policy.json), and what wheels of Qt, OpenCV and others
# open besides; packaging/images/wheels.sh finds out what that is.
python - <<'EOF' || fail "a library that wheels expect is missing"
import ctypes
for name in """libgcc_s.so.1 libstdc++.so.6 libm.so.6 libdl.so.2 librt.so.1 libc.so.6 libnsl.so.1 libutil.so.1 libpthread.so.0
    libresolv.so.2 libX11.so.6 libXext.so.6 libXrender.so.1 libICE.so.6 libSM.so.6 libGL.so.1 libgobject-2.0.so.0
    libgthread-2.0.so.0 libglib-2.0.so.0 libexpat.so.1 libz.so.1 libcrypt.so.1 libncursesw.so.6 libpanelw.so.6 libatomic.so.1
    libEGL.so.1 libOpenGL.so.0 libxcb.so.1 libxkbcommon.so.0 libdbus-1.so.3
    libcairo.so.2 libpango-1.0.so.0 libpangoft2-1.0.so.0 libGLESv2.so.2 libusb-1.0.so.0 libpq.so.5 libodbc.so.2""".split():
    ctypes.CDLL(name)
EOF
fonts=/usr/share/fonts/truetype
[ -e $fonts/wqy/wqy-microhei.ttc ] && [ -e $fonts/ancient-scripts/Symbola_hint.ttf ] || fail "there are no fonts for CJK and emoji"
/opt/lab/bin/jupyterhub-singleuser --version
python -c 'import pynvml' || fail "no pynvml"
/opt/lab/bin/python -c 'import site, sys; sys.exit(bool(site.ENABLE_USER_SITE))' || fail "the server looks into homes"
printf '{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[{"cell_type":"code","id":"one","metadata":{},"source":"import os; print(os.getcwd())","outputs":[],"execution_count":null}]}' >/tmp/proof.ipynb
GPULAB_JOB_ID=7 run-notebook /tmp/proof.ipynb | grep -qx /tmp && grep -q '/tmp' /tmp/proof.7.ipynb || fail "a notebook does not run as a job"
/opt/lab/bin/python /proof/notebook.py "$1"
