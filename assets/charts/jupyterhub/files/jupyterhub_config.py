"""JupyterHub as a part of gpulab.

gpulab signs people in, decides who may start what and when, and is the hub's
proxy. The hub's share is to turn a start that gpulab asks for into a pod and to
tell gpulab's proxy where that pod listens.

The chart's values arrive as one JSON file, under the names that Zero to
JupyterHub uses. What must hold whatever the values say stands at the end.
"""

# The variable c is JupyterHub's own.
# ruff: noqa: F821
import inspect
import json
import os
import re

from jupyterhub.utils import exponential_backoff
from kubernetes_asyncio.client import (
    V1Affinity,
    V1EmptyDirVolumeSource,
    V1EnvVar,
    V1EnvVarSource,
    V1NodeAffinity,
    V1NodeSelector,
    V1NodeSelectorRequirement,
    V1NodeSelectorTerm,
    V1PersistentVolumeClaimVolumeSource,
    V1PreferredSchedulingTerm,
    V1ResourceFieldSelector,
    V1Toleration,
    V1Volume,
    V1VolumeMount,
)

VALUES = os.environ.get("GPULAB_HUB_VALUES", "/etc/jupyterhub/values.json")
with open(VALUES, encoding="utf-8") as file:
    values = json.load(file)


def get_config(path, default=None):
    """Return the value at a path like "singleuser.image.name"."""
    value = values
    for key in path.split("."):
        if not isinstance(value, dict) or value.get(key) is None:
            return default
        value = value[key]
    return value


def set_traits(target, prefix, names):
    """Set those traits of target whose value is given below prefix."""
    for trait, key in names.items():
        value = get_config(f"{prefix}.{key}")
        if value is not None:
            setattr(target, trait, value)


def as_list(value):
    """z2jh takes many lists as dicts too, so that values files can be merged."""
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return list(value or [])


namespace = os.environ["POD_NAMESPACE"]
gpulab = f"https://gpulab.{namespace}.svc.cluster.local"

# --- The hub and the way to it -------------------------------------------------

c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"
# The full name: what is shorter may be looked up outside the cluster first.
c.JupyterHub.hub_connect_url = f"http://hub.{namespace}.svc.cluster.local:8081"
c.JupyterHub.db_url = "sqlite:////srv/jupyterhub/jupyterhub.sqlite"
c.JupyterHub.upgrade_db = True
c.JupyterHub.cookie_secret = bytes.fromhex(values["hub"]["cookieSecret"])

# Pods outlive the hub, and gpulab asks for their state rather than waiting.
c.JupyterHub.cleanup_servers = False
c.JupyterHub.init_spawners_timeout = 1
c.JupyterHub.last_activity_interval = 60
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}

set_traits(c.JupyterHub, "hub", {
    "active_server_limit": "activeServerLimit",
    "authenticate_prometheus": "authenticatePrometheus",
    "concurrent_spawn_limit": "concurrentSpawnLimit",
    "named_server_limit_per_user": "namedServerLimitPerUser",
    "redirect_to_server": "redirectToServer",
    "template_paths": "templatePaths",
    "template_vars": "templateVars",
})

# --- Sign-in -------------------------------------------------------------------

c.JupyterHub.authenticator_class = "generic-oauth"
c.GenericOAuthenticator.client_id = values["gpulab"]["oidcClientID"]
c.GenericOAuthenticator.client_secret = values["gpulab"]["oidcClientSecret"]
# A path, because only the visitor's browser knows which of the lab's names and
# addresses it used: gpulab's proxy, on the same origin, redirects to the pages.
c.GenericOAuthenticator.authorize_url = "/gpulab/authorize"
c.GenericOAuthenticator.logout_redirect_url = "/gpulab/logout"
# Left empty, it is derived from each request, for the same reason.
c.GenericOAuthenticator.oauth_callback_url = ""
c.GenericOAuthenticator.token_url = f"{gpulab}/oidc/token"
c.GenericOAuthenticator.userdata_url = f"{gpulab}/oidc/userinfo"
c.GenericOAuthenticator.scope = ["openid", "profile"]
c.GenericOAuthenticator.username_claim = "preferred_username"
c.GenericOAuthenticator.login_service = "gpulab"
c.GenericOAuthenticator.auto_login = True
# The hub's API speaks OAuth to notebooks; this makes its own pages follow too.
c.GenericOAuthenticator.auto_login_oauth2_authorize = True
# gpulab has let the person in already, and checks every request again.
c.GenericOAuthenticator.allow_all = True
c.GenericOAuthenticator.enable_auth_state = False
c.GenericOAuthenticator.manage_groups = False
c.Authenticator.auth_refresh_age = 0

# --- gpulab is the proxy and the only one that starts servers ------------------

c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = f"{gpulab}/hub-proxy"
c.ConfigurableHTTPProxy.auth_token = values["proxy"]["secretToken"]

c.JupyterHub.services = [
    {"name": "gpulab", "api_token": values["gpulab"]["serviceToken"]},
]
for name, service in sorted(get_config("hub.services", {}).items()):
    service = {"name": name, **service}
    if "apiToken" in service:
        service["api_token"] = service.pop("apiToken")
    c.JupyterHub.services.append(service)

c.JupyterHub.load_roles = [
    {
        "name": "gpulab",
        "services": ["gpulab"],
        "scopes": [
            "list:users", "read:users", "admin:users", "servers", "access:servers", "proxy",
            # For tokens that open one server and nothing else: with them gpulab asks
            # a notebook, which its owner controls, what its kernels do.
            "tokens",
        ],
    },
    # Everybody's role. JupyterHub's own has "servers" and "tokens" in it, with
    # which anyone could start a server with any profile past gpulab's queue.
    {
        "name": "user",
        "scopes": ["read:users!user", "users:activity!user", "access:servers!user"],
    },
]
for name, role in sorted(get_config("hub.loadRoles", {}).items()):
    c.JupyterHub.load_roles.append({"name": name, **role})

# --- Notebooks -----------------------------------------------------------------

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.allow_named_servers = True
c.KubeSpawner.poll_interval = 15
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.ip = "0.0.0.0"
c.KubeSpawner.port = 8888
c.KubeSpawner.consecutive_failure_limit = get_config("hub.consecutiveFailureLimit", 0)

image = values["singleuser"]["image"]
c.KubeSpawner.image = f"{image['name']}:{image['tag']}"
c.KubeSpawner.priority_class_name = "gpulab-notebook"

set_traits(c.KubeSpawner, "singleuser", {
    "cmd": "cmd",
    "cpu_guarantee": "cpu.guarantee",
    "cpu_limit": "cpu.limit",
    "default_url": "defaultUrl",
    "events_enabled": "events",
    "extra_annotations": "extraAnnotations",
    "extra_resource_guarantees": "extraResource.guarantees",
    "extra_resource_limits": "extraResource.limits",
    "image_pull_policy": "image.pullPolicy",
    "lifecycle_hooks": "lifecycleHooks",
    "mem_guarantee": "memory.guarantee",
    "mem_limit": "memory.limit",
    "node_selector": "nodeSelector",
    "pod_name_template": "podNameTemplate",
    "start_timeout": "startTimeout",
})
c.KubeSpawner.extra_containers = as_list(get_config("singleuser.extraContainers"))
c.KubeSpawner.init_containers = as_list(get_config("singleuser.initContainers"))
c.KubeSpawner.profile_list = as_list(get_config("singleuser.profileList"))
c.KubeSpawner.node_affinity_required = as_list(get_config("singleuser.extraNodeAffinity.required"))
c.KubeSpawner.node_affinity_preferred = as_list(get_config("singleuser.extraNodeAffinity.preferred"))
c.KubeSpawner.pod_affinity_required = as_list(get_config("singleuser.extraPodAffinity.required"))
c.KubeSpawner.pod_affinity_preferred = as_list(get_config("singleuser.extraPodAffinity.preferred"))
c.KubeSpawner.pod_anti_affinity_required = as_list(get_config("singleuser.extraPodAntiAffinity.required"))
c.KubeSpawner.pod_anti_affinity_preferred = as_list(get_config("singleuser.extraPodAntiAffinity.preferred"))
c.KubeSpawner.tolerations = (
    as_list(get_config("scheduling.userPods.tolerations"))
    + as_list(get_config("singleuser.extraTolerations"))
)

purpose = get_config("scheduling.userPods.nodeAffinity.matchNodePurpose", "ignore")
if purpose != "ignore":
    users = {
        "matchExpressions": [
            {"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]},
        ],
    }
    if purpose == "require":
        c.KubeSpawner.node_affinity_required.append(users)
    else:
        c.KubeSpawner.node_affinity_preferred.append({"weight": 100, "preference": users})

# The hub asks a starting server whether it answers, at first soon, then after
# pauses of up to 5 s, which is how much later than necessary people would get in.
# There is no setting for it; these are the defaults of the function's parameters.
waiting = {
    name: parameter.default
    for name, parameter in inspect.signature(exponential_backoff).parameters.items()
    if parameter.default is not parameter.empty
}
if {"start_wait", "max_wait"} <= waiting.keys():
    exponential_backoff.__defaults__ = tuple({**waiting, "start_wait": 0.1, "max_wait": 0.3}.values())

home = get_config("singleuser.storage.homeMountPath", "/home/{username}")
home = home.replace("{username}", "{unescaped_username}")
c.KubeSpawner.working_dir = home
c.KubeSpawner.volumes = [
    {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
    # 64 MiB, the usual size, makes PyTorch's data loaders crash. What finish_pod
    # does not bound ends at the notebook's memory, as everything in it counts.
    {"name": "shm", "emptyDir": {"medium": "Memory"}},
    # Jupyter's SQLite files: on a home that came over NFS they hang.
    {"name": "scratch", "emptyDir": {"sizeLimit": values["gpulab"]["scratchSize"]}},
    # For people: the disk of the machine itself, whatever homes lie on.
    {"name": "local", "emptyDir": {"sizeLimit": values["gpulab"]["scratchSize"]}},
    *as_list(get_config("singleuser.storage.extraVolumes")),
]
c.KubeSpawner.volume_mounts = [
    {"name": "home", "mountPath": home},
    {"name": "shm", "mountPath": "/dev/shm"},
    {"name": "scratch", "mountPath": "/tmp"},
    {"name": "local", "mountPath": "/scratch"},
    *as_list(get_config("singleuser.storage.extraVolumeMounts")),
]

if get_config("debug.enabled"):
    c.JupyterHub.log_level = "DEBUG"
    c.KubeSpawner.debug = True

# --- What the lab adds ----------------------------------------------------------

for class_name, traits in sorted(get_config("hub.config", {}).items()):
    for trait, value in sorted(traits.items()):
        section = c[class_name]
        # Dicts are merged, so that one entry more does not drop ours.
        if isinstance(value, dict) and isinstance(section.get(trait), dict):
            value = {**section[trait], **value}
        section[trait] = value

for name, code in sorted(get_config("hub.extraConfig", {}).items()):
    exec(compile(code, f"hub.extraConfig.{name}", "exec"))

# --- What holds whatever was said above -----------------------------------------


def uid_of(spawner):
    """Return the person's UID, which gpulab sends with every start.

    Only gpulab can start servers, but a wrong number would open somebody
    else's home, so it is checked here once more.
    """
    uid = spawner.user_options.get("uid")
    # From 20000 on, gpulab gives them out; the others were somebody's on the
    # machine before. 19999 is this hub's own.
    if type(uid) is not int or not (1000 <= uid <= 19998 or 20000 <= uid <= 59999):
        raise ValueError(
            f"gpulab sent the user ID {uid!r}; it has to be a number from 1000 to 19998 "
            "or from 20000 to 59999"
        )
    return uid


def folders_of(spawner):
    """Return the shared folders that gpulab sends with a start.

    Claims are of the person's own namespace and made by gpulab alone; names and
    numbers are checked here once more, because mounts and groups come of them.
    """
    folders = spawner.user_options.get("folders") or []
    for folder in folders:
        gid = folder.get("gid")
        if not (
            re.fullmatch(r"(folder|part)-[1-9][0-9]*", str(folder.get("claim")))
            and re.fullmatch(r"[a-z]([a-z0-9]|-[a-z0-9]){1,29}", str(folder.get("name")))
            and type(folder.get("readOnly")) is bool
            and type(gid) is int
            and (gid == 0 or 60000 <= gid <= 64999)
        ):
            raise ValueError(f"gpulab sent a shared folder that cannot be: {folder!r}")
    return folders


def add_folders(spawner, pod):
    """Mount the shared folders below the home, where JupyterLab's file tree shows them."""
    container = pod.spec.containers[0]
    groups = set()
    for folder in folders_of(spawner):
        claim, read_only = folder["claim"], folder["readOnly"]
        pod.spec.volumes.append(V1Volume(
            name=claim,
            persistent_volume_claim=V1PersistentVolumeClaimVolumeSource(claim_name=claim, read_only=read_only),
        ))
        container.volume_mounts.append(V1VolumeMount(
            name=claim,
            mount_path=f"{container.working_dir}/shared/{folder['name']}",
            read_only=read_only,
            # What is mounted below a folder of the machine is only read, too.
            recursive_read_only="Enabled" if read_only else None,
        ))
        if folder["gid"]:
            groups.add(folder["gid"])
    if groups:
        pod.spec.security_context["supplementalGroups"] = sorted(groups)
    if spawner.user_options.get("hostUsers") is True:
        pod.spec.host_users = True


# Where notebooks see the lab's environments; virtual environments name the path in their files.
ENVIRONMENTS = "/opt/gpulab/environments"


def add_environments(spawner, pod):
    """Mount the lab's environments, for all to read; Jupyter finds their kernels by its search path.

    What is added later appears by itself. The claim is of the person's own
    namespace and made by gpulab alone.
    """
    if spawner.user_options.get("environments") is not True:
        return
    pod.spec.volumes.append(V1Volume(
        name="environments",
        persistent_volume_claim=V1PersistentVolumeClaimVolumeSource(claim_name="environments", read_only=True),
    ))
    container = pod.spec.containers[0]
    container.volume_mounts.append(V1VolumeMount(name="environments", mount_path=ENVIRONMENTS, read_only=True))
    theirs = {variable.name for variable in container.env or []}
    container.env = [
        *(container.env or []),
        *(
            V1EnvVar(name=name, value=value)
            for name, value in {"JUPYTER_PATH": ENVIRONMENTS, "JUPYTER_CONFIG_PATH": f"{ENVIRONMENTS}/config"}.items()
            if name not in theirs
        ),
    ]


def add_env(spawner, pod):
    """Add what gpulab has in the environment of every pod; what the lab or the profile sets stays.

    The value of each variable in "threads" is how many processors the notebook may
    use, which Kubernetes knows once the limits of the namespace have been applied.
    """
    env = spawner.user_options.get("env") or {}
    threads = spawner.user_options.get("threads") or []
    if not (
        isinstance(env, dict)
        and isinstance(threads, list)
        and all(isinstance(value, str) for value in env.values())
        and all(re.fullmatch(r"[A-Z][A-Z0-9_]*", str(name)) for name in [*env, *threads])
    ):
        raise ValueError(f"gpulab sent an environment that cannot be: {env!r}, {threads!r}")
    container = pod.spec.containers[0]
    theirs = {variable.name for variable in container.env or []}
    source = V1EnvVarSource(resource_field_ref=V1ResourceFieldSelector(resource="limits.cpu"))
    container.env = [
        *(container.env or []),
        *(V1EnvVar(name=name, value=value) for name, value in env.items() if name not in theirs),
        *(V1EnvVar(name=name, value_from=source) for name in threads if name not in theirs),
    ]


def add_models(spawner, pod):
    """Let the pod ask the lab's cache for models, where gpulab says that it may.

    Xet, Hugging Face's newer way of moving files, would lead past it.
    """
    cache = spawner.user_options.get("models")
    if cache is None:
        return
    if not (isinstance(cache, str) and re.fullmatch(r"http://[a-z0-9.-]+", cache)):
        raise ValueError(f"gpulab sent the cache of models {cache!r}, which cannot be one's address")
    container = pod.spec.containers[0]
    if not any(variable.name == "HF_ENDPOINT" for variable in container.env or []):
        container.env = [
            *(container.env or []),
            V1EnvVar(name="HF_ENDPOINT", value=cache),
            V1EnvVar(name="HF_HUB_DISABLE_XET", value="1"),
        ]


def bind_to_node(spawner, pod):
    """Keep the pod to the machine that gpulab names, where its home is for example."""
    node = spawner.user_options.get("node")
    if node is None:
        return
    if not (isinstance(node, str) and re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", node)):
        raise ValueError(f"gpulab sent the machine {node!r}, which cannot be one's name")
    pod.spec.node_selector = {**(pod.spec.node_selector or {}), "kubernetes.io/hostname": node}


def machines_of(spawner, option):
    """Return the machines that gpulab names under an option, None where it names none."""
    names = spawner.user_options.get(option)
    if names is None:
        return None
    if not (
        isinstance(names, list)
        and names
        and all(isinstance(n, str) and re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", n) for n in names)
    ):
        raise ValueError(f"gpulab sent the machines {names!r}, which cannot be names of some")
    return [V1NodeSelectorRequirement(key="kubernetes.io/hostname", operator="In", values=names)]


def choose_machine(spawner, pod):
    """Keep the pod to the machines it may run on, and to those it should where they have room."""
    only, prefer = machines_of(spawner, "machines"), machines_of(spawner, "prefer")
    if not (only or prefer):
        return
    affinity = pod.spec.affinity = pod.spec.affinity or V1Affinity()
    node = affinity.node_affinity = affinity.node_affinity or V1NodeAffinity()
    if only:
        required = node.required_during_scheduling_ignored_during_execution
        if required is None:
            required = V1NodeSelector(node_selector_terms=[V1NodeSelectorTerm()])
            node.required_during_scheduling_ignored_during_execution = required
        for term in required.node_selector_terms:  # one of them is enough, so each has it
            term.match_expressions = [*(term.match_expressions or []), *only]
    if prefer:
        node.preferred_during_scheduling_ignored_during_execution = [
            *(node.preferred_during_scheduling_ignored_during_execution or []),
            V1PreferredSchedulingTerm(weight=100, preference=V1NodeSelectorTerm(match_expressions=prefer)),
        ]


def close_home(pod):
    """Let a notebook only read the home, and work elsewhere: the home is full."""
    container = pod.spec.containers[0]
    for mount in container.volume_mounts:
        if mount.name == "home":
            mount.read_only = True
    container.env = [
        *(variable for variable in container.env or [] if variable.name not in ("HOME", "JUPYTERHUB_ROOT_DIR")),
        V1EnvVar(name="HOME", value="/tmp/home"),
        V1EnvVar(name="JUPYTERHUB_ROOT_DIR", value=container.working_dir),
    ]


def finish_pod(spawner, pod):
    """Label the pod with its launch, bound its space, keep it through its node's absences.

    It gets the node's user IDs if it has a GPU, and the person's
    shared folders.
    """
    launch = spawner.user_options.get("launch")
    if launch is not None:
        pod.metadata.labels["gpulab.dev/launch"] = str(launch)
    resources = pod.spec.containers[0].resources
    limits = resources.limits = resources.limits or {}
    # What it writes beside its home: whoever goes over it ends their own
    # notebook, and fills nobody's disk. Nothing is set aside for it.
    limits["ephemeral-storage"] = values["gpulab"]["scratchSize"]
    resources.requests = {**(resources.requests or {}), "ephemeral-storage": "0"}
    shm = values["gpulab"]["shmSize"]
    if not shm and isinstance(limits.get("memory"), int):
        shm = str(limits["memory"] // 2)
    for volume in pod.spec.volumes or []:
        if shm and volume.name == "shm":
            volume.empty_dir = V1EmptyDirVolumeSource(medium="Memory", size_limit=shm)
    # In a user namespace the hooks that bring the driver into it may not do their
    # work (known issues in the release notes of NVIDIA's GPU Operator 26.3.1), and the
    # device files of simulated GPUs are not found.
    if "nvidia.com/gpu" in limits:
        pod.spec.host_users = True
    add_folders(spawner, pod)
    add_environments(spawner, pod)
    add_env(spawner, pod)
    add_models(spawner, pod)
    bind_to_node(spawner, pod)
    choose_machine(spawner, pod)
    if spawner.user_options.get("homeReadOnly") is True:
        close_home(pod)
    # Kubernetes would delete it once its node has been away for five minutes,
    # although it may well go on there.
    pod.spec.tolerations = [
        *(pod.spec.tolerations or []),
        *(
            V1Toleration(key=f"node.kubernetes.io/{state}", operator="Exists", effect="NoExecute")
            for state in ("not-ready", "unreachable")
        ),
    ]
    return pod


# gpulab makes the namespace, with its policies and the home, before it starts
# anything; a handle is its own slug, so both sides come to the same name.
c.KubeSpawner.enable_user_namespaces = True
c.KubeSpawner.user_namespace_template = "user-{username}"
c.KubeSpawner.storage_pvc_ensure = False
c.KubeSpawner.delete_pvc = False
c.KubeSpawner.uid = uid_of
c.KubeSpawner.gid = uid_of
c.KubeSpawner.modify_pod_hook = finish_pod
c.KubeSpawner.component_label = "notebook"
c.KubeSpawner.extra_labels = {
    **get_config("singleuser.extraLabels", {}),
    "app.kubernetes.io/component": "notebook",
    "gpulab.dev/user": "{unescaped_username}",
    "gpulab.dev/notebook": "{unescaped_servername}",
}
c.KubeSpawner.environment = {
    **get_config("singleuser.extraEnv", {}),
    "HOME": home,
    "SCRATCH": "/scratch",
}

# A restarted hub asks every server, and stops those that do not answer in this
# time: a node that is away for minutes must not cost anybody their work.
c.KubeSpawner.http_timeout = max(600, get_config("hub.config.KubeSpawner.http_timeout", 0))

# While a whole class starts, hub and API may take longer than the usual three
# seconds; the spawner takes one late answer for a server that failed to start.
c.KubeSpawner.k8s_api_request_timeout = get_config("hub.config.KubeSpawner.k8s_api_request_timeout", 30)
c.KubeSpawner.k8s_api_request_retry_timeout = get_config("hub.config.KubeSpawner.k8s_api_request_retry_timeout", 120)

# The "restricted" profile of Kubernetes' Pod Security Standards.
c.KubeSpawner.privileged = False
c.KubeSpawner.allow_privilege_escalation = False
c.KubeSpawner.automount_service_account_token = False
c.KubeSpawner.container_security_context = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
}
c.KubeSpawner.pod_security_context = {"seccompProfile": {"type": "RuntimeDefault"}}
pod_config = get_config("singleuser.extraPodConfig", {})
pod_dns = pod_config.get("dnsConfig") or {}
c.KubeSpawner.extra_pod_config = {
    **pod_config,
    # Names are asked for as written before any search domain, of the cluster or the
    # network, has a say. What the lab sets comes later and so wins.
    "dnsConfig": {**pod_dns, "options": [{"name": "ndots", "value": "1"}, *(pod_dns.get("options") or [])]},
    "enableServiceLinks": False,
    "hostUsers": values["gpulab"]["hostUsers"],
    # One that died is ended with its reason, rather than back without its state.
    "restartPolicy": "Never",
}
# Its last lines are that reason; its log goes with its pod.
c.KubeSpawner.extra_container_config = {"terminationMessagePolicy": "FallbackToLogsOnError"}
