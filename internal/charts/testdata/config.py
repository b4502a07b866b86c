"""Print the hub's configuration as JSON; callables as their names."""

import json
import sys

from jupyterhub.app import JupyterHub

app = JupyterHub()
app.load_config_file(sys.argv[1])
json.dump(
    {name: dict(section) for name, section in app.config.items()},
    sys.stdout,
    default=lambda value: getattr(value, "__name__", repr(value)),
)
