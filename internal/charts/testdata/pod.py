"""Print the pods that KubeSpawner would make, as a JSON list.

Arguments: the hub's configuration, the user's handle, the server's name, and a
JSON list with the user_options of one start each. A start that fails is printed
as {"error": "..."}.
"""

import asyncio
import json
import sys

from jupyterhub.app import JupyterHub
from jupyterhub.utils import new_token
from kubernetes_asyncio.client import ApiClient
from kubespawner import KubeSpawner


class Mock:
    """Stands in for the hub's user, hub and server objects."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


async def spawn(app, handle, server, user_options):
    user = Mock(
        name=handle, id=1, url=f"/user/{handle}/", servers={}, admin=False,
        escaped_name=handle,
    )
    hub = Mock(
        public_host="", url="http://hub:8081/hub/", base_url="/hub/",
        api_url=app.config.JupyterHub.hub_connect_url + "/hub/api",
    )
    spawner = KubeSpawner(_mock=True, config=app.config, user=user, hub=hub)
    spawner.orm_spawner = Mock(name=server, server=None)
    spawner.api_token = new_token()
    spawner.oauth_client_id = "jupyterhub-user"
    spawner.user_options = user_options
    # The name comes from the database row, which is set only now.
    spawner.namespace = spawner._expand_user_properties(spawner.user_namespace_template)
    spawner.pod_name = spawner._expand_user_properties(spawner.pod_name_template)
    spawner.working_dir = spawner._expand_user_properties(app.config.KubeSpawner.working_dir)
    await spawner.load_user_options()
    pod = spawner.modify_pod_hook(spawner, await spawner.get_pod_manifest())
    return {
        "namespace": spawner.namespace,
        "httpTimeout": spawner.http_timeout,
        "pod": ApiClient().sanitize_for_serialization(pod),
    }


async def main(config, handle, server, starts):
    app = JupyterHub()
    app.load_config_file(config)
    results = []
    for options in starts:
        try:
            results.append(await spawn(app, handle, server, options))
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"})
    return results


config, handle, server, starts = sys.argv[1:]
json.dump(asyncio.run(main(config, handle, server, json.loads(starts))), sys.stdout)
