# Programs that people installed for themselves come first, the notebook
# server's own (jupyter, jupyter-lab) last. Login shells read this too: Debian's
# /etc/profile has just set PATH anew.
PATH=$HOME/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/lab/bin:/opt/gpulab/environments/.bin
export PATH
# That is for the lab's notebook server: what a person starts reads their own.
if [ "${JUPYTER_CONFIG_DIR-}" = /tmp/.gpulab/config ]; then
  unset JUPYTER_CONFIG_DIR
fi
