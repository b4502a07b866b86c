# Runs in the hub image as its own user, without a network.
set -eu
[ "$(id -u)" = 1000 ] && [ "$(whoami)" = hub ]
[ -w /srv/jupyterhub ] && [ ! -w /opt/hub ]
jupyterhub --version
if python -c 'import pip' 2>/dev/null; then
  echo 'proof: pip is in the hub' >&2
  exit 1
fi
cat >/tmp/config.py <<'CONFIG'
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.authenticator_class = "generic-oauth"
c.JupyterHub.db_url = "sqlite:////tmp/hub.sqlite"
c.KubeSpawner.image = "gpulab.local/notebook:proof"
c.GenericOAuthenticator.allow_all = True
CONFIG
cd /srv/jupyterhub
jupyterhub --config /tmp/config.py --show-config >/tmp/shown 2>&1 || {
  cat /tmp/shown >&2
  exit 1
}
grep -q "gpulab.local/notebook:proof" /tmp/shown
jupyterhub upgrade-db --config /tmp/config.py >/dev/null 2>&1
for page in css/style.min.css js/home.js components/requirejs/require.js components/jquery/dist/jquery.min.js components/bootstrap/dist/js/bootstrap.bundle.min.js components/moment/moment.js; do
  [ -s "/opt/hub/share/jupyterhub/static/$page" ] || { echo "proof: the hub's pages need $page" >&2; exit 1; }
done
