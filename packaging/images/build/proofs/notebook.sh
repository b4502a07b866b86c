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
printf '#include <Python.h>\nint main() { return PY_MINOR_VERSION != 11; }\n' >/tmp/b.c
gcc $(python3.11-config --includes) -o /tmp/b /tmp/b.c && /tmp/b || fail "nothing can be compiled for Python 3.11"
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
    libcairo.so.2 libpango-1.0.so.0 libpangoft2-1.0.so.0 libGLESv2.so.2 libusb-1.0.so.0 libpq.so.5 libodbc.so.2 libgcrypt.so.20""".split():
    ctypes.CDLL(name)
EOF
fonts=/usr/share/fonts/truetype
[ -e $fonts/wqy/wqy-microhei.ttc ] && [ -e $fonts/ancient-scripts/Symbola_hint.ttf ] || fail "there are no fonts for CJK and emoji"
/opt/lab/bin/jupyterhub-singleuser --version
python -c 'import pynvml' || fail "no pynvml"
/opt/lab/bin/python -c 'import site, sys; sys.exit(bool(site.ENABLE_USER_SITE))' || fail "the server looks into homes"
printf '{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[{"cell_type":"code","id":"one","metadata":{},"source":"import os; print(os.getcwd())","outputs":[],"execution_count":null}]}' >/tmp/proof.ipynb
GPULAB_JOB_ID=7 run-notebook /tmp/proof.ipynb | grep -qx /tmp && grep -q '/tmp' /tmp/proof.7.ipynb || fail "a notebook does not run as a job"

# The Python of a home, and of what was made with the image's earlier one.
version() { "$@" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
is() { want=$1; shift; [ "$(version "$@")" = "$want" ] || fail "$* is Python $(version "$@"), not $want: $why"; }
newest=$(/opt/lab/bin/python -c 'import gpulab_python, sys; print(*gpulab_python.VERSIONS); sys.exit("%d.%d" % sys.version_info[:2] != gpulab_python.VERSIONS[0])') \
  || fail "gpulab_python says that the image has $newest"
[ "$(ls /usr/bin/python3.*[0-9] | wc -l)" = "$(echo "$newest" | wc -w)" ] || fail "there are other Pythons than $newest"
newest=${newest%% *}
for python in python3.11 "python$newest"; do
  (cd / && "$python" -c 'import ipykernel, IPython, zmq, debugpy, pynvml, pip, ssl, sqlite3, lzma, curses, readline, ctypes, venv') || fail "$python lacks something"
done
(
  export HOME=/tmp/before
  mkdir -p $HOME/.local/lib/python3.11/site-packages/__pycache__ $HOME/.config/gpulab
  choice=$HOME/.config/gpulab/python
  why="a home without packages" is "$newest" python3
  use-python | grep -q "^python3 is Python $newest in your home\.$" || fail "use-python says: $(use-python)"
  for wrong in '' 3 3.9 3.1 3.111 2.7 ' 3.11' nonsense; do
    echo "$wrong" >$choice
    why="the choice \"$wrong\"" is "$newest" python3
    use-python | grep -q "^python3 is Python $newest in your home\.$" || fail "with \"$wrong\", use-python says: $(use-python)"
  done
  for right in 3.11 3.11.2 '3.11 # mine'; do
    echo "$right" >$choice
    why="the choice \"$right\"" is 3.11 python3
    use-python | grep -q "^python3 is Python 3.11 " || fail "with \"$right\", use-python says: $(use-python)"
  done
  rm $choice
  mkfifo $choice && why="a pipe in place of the choice" is "$newest" timeout 5 python3 && timeout 5 use-python >/dev/null || fail "use-python waits for a pipe"
  rm $choice
  mkdir $choice && ! use-python 3.11 2>/tmp/said && grep -q "^use-python: ~/.config/gpulab/python: it is a folder" /tmp/said || fail "use-python says: $(cat /tmp/said)"
  rmdir $choice

  python3.11 -m pip -q install --no-index /proof/gpulab_proof-1.0-py3-none-any.whl
  why="a home with packages for it"
  is 3.11 python3; is 3.11 python; is 3.11 /usr/bin/python3; is "$newest" "python$newest"; is 3.11 env PATH=/none:/usr/bin python3
  [ "$($HOME/.local/bin/gpulab-proof)" = proven ] || fail "a program of the home does not run"
  for program in "pip 3.11" "pip3 3.11" "pip3.11 3.11" "pip$newest $newest"; do
    ! command -v "${program% *}" >/dev/null || "${program% *}" --version | grep -q "python ${program#* })" || fail "${program% *} is $("${program% *}" --version)"
  done
  python3-config --includes | grep -q python3.11 || fail "python3-config says $(python3-config --includes)"
  # Virtual environments of Debian 12's time link to /usr/bin/python3.
  python3 -m venv $HOME/venv && ln -sf /usr/bin/python3 $HOME/venv/bin/python3
  $HOME/venv/bin/pip -q install --no-index /proof/gpulab_proof-1.0-py3-none-any.whl || fail "pip of a venv does not work"
  use-python | grep -q "pip install gpulab-proof" || fail "use-python says: $(use-python)"
  ! use-python 3.9 2>/dev/null || fail "use-python takes a Python that is not there"
  # What runs goes on with its own Python while somebody chooses another.
  cat >/tmp/pool.py <<'EOF'
import multiprocessing, os, subprocess, sys
def version(_):
    return sys.version_info[1]
if __name__ == "__main__":
    subprocess.run(["use-python", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print({sys.version_info[1], *pool.map(version, range(4))})
EOF
  [ "$(timeout 60 python3 /tmp/pool.py "$newest")" = "{11}" ] || fail "a running program changes its Python"
  use-python "$newest" | grep -q "python$newest -m pip install gpulab-proof" || fail "use-python names no packages"
  why="the owner's choice"
  is "$newest" python3; is 3.11 $HOME/venv/bin/python3
  [ "$($HOME/venv/bin/python3 -c 'import gpulab_proof, sys; print(sys.prefix)')" = $HOME/venv ] || fail "a venv is not itself"
  [ "$($HOME/venv/bin/gpulab-proof)" = proven ] && [ "$($HOME/.local/bin/gpulab-proof)" = proven ] || fail "programs of Python 3.11 do not run"
  (. $HOME/venv/bin/activate; why="an active venv"; is 3.11 python3; is 3.11 python)
  (cd $HOME/venv/bin; PATH=:/usr/bin; why="a venv that is the working folder" is 3.11 python3)
  echo 'version_info = 3.11.2.final.0' >$HOME/venv/pyvenv.cfg
  why="a venv of virtualenv" is 3.11 $HOME/venv/bin/python3
  # Of a version that the image does not have, or that is not said.
  for config in 'version = 3.12.1' 'home = /usr/bin'; do
    echo "$config" >$HOME/venv/pyvenv.cfg
    [ "$($HOME/venv/bin/python3 -c 'import sys; print(sys.prefix)')" = $HOME/venv ] || fail "a venv with \"$config\" is not itself"
  done
  use-python 3.11 >/dev/null; why="a choice that was taken back" is 3.11 python3
  # Packages for both, and no choice.
  rm $choice
  "python$newest" -m pip -q install --no-index /proof/gpulab_proof-1.0-py3-none-any.whl
  why="packages for both" is "$newest" python3
  why="no home" is "$newest" env -u HOME python3
)
(
  export HOME=/tmp/kept
  mkdir -p $HOME/.local/lib/python3.11/site-packages
  touch $HOME/.local/lib/python3.11/site-packages/mine.py
  start-notebook "python$newest" -m pip -q install --no-index /proof/gpulab_proof-1.0-py3-none-any.whl
  why="packages for another Python, too" is 3.11 python3
)
/opt/lab/bin/python /proof/notebook.py "$1"
