package charts

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// usualValues is a values file as people write it for Zero to JupyterHub: what
// its documentation shows for profiles, resources, storage, scheduling, taints,
// environment and the hub itself, less what the table of refusals covers.
const usualValues = `
hub:
  config:
    JupyterHub:
      log_level: DEBUG
      template_vars: {announcement: "Maintenance on Friday"}
    KubeSpawner:
      slug_scheme: safe
      k8s_api_request_timeout: 7
  extraConfig:
    10-env: |
      c.KubeSpawner.notebook_dir = get_config("custom.dir")
  concurrentSpawnLimit: 5
  activeServerLimit: 40
  namedServerLimitPerUser: 4
  consecutiveFailureLimit: 5
  extraEnv: {LAB: physics, FROM: {value: there}}
  labels: {team: physics}
  annotations: {note: hello}
  nodeSelector: {disk: ssd}
  tolerations:
    - {key: core, operator: Exists, effect: NoSchedule}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
  extraVolumes:
    - {name: extra, emptyDir: {}}
  extraVolumeMounts:
    - {name: extra, mountPath: /extra}
  services:
    report: {apiToken: report-token-0123456789}
  loadRoles:
    report: {services: [report], scopes: ["list:users"]}
  networkPolicy:
    enabled: true
    egress:
      - ports: [{port: 636, protocol: TCP}]
  db: {type: sqlite-pvc}
singleuser:
  image: {name: gpulab.local/physics, tag: "2024", pullPolicy: IfNotPresent}
  cmd: start-singleuser.sh
  defaultUrl: /tree
  startTimeout: 90
  cpu: {limit: 2, guarantee: 0.5}
  memory: {limit: 2G, guarantee: 1G}
  extraEnv: {EDITOR: vim, POD: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}}
  extraLabels: {course: p101}
  extraAnnotations: {cost: "42"}
  nodeSelector: {pool: users}
  extraTolerations:
    - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  extraNodeAffinity:
    required:
      - matchExpressions: [{key: zone, operator: In, values: [a]}]
  extraResource:
    limits: {example.com/fpga: "1"}
  extraPodConfig: {shareProcessNamespace: true}
  initContainers:
    - {name: warm, image: "gpulab.local/warm:1"}
  extraContainers:
    side: {name: side, image: "gpulab.local/side:1"}
  lifecycleHooks:
    postStart: {exec: {command: ["true"]}}
  cloudMetadata: {blockWithIptables: false}
  storage:
    homeMountPath: /users/{username}
    extraVolumes:
      - {name: data, hostPath: {path: /srv/data}}
    extraVolumeMounts:
      - {name: data, mountPath: /data, readOnly: true}
  profileList:
    - display_name: Small
      description: One core
      default: true
    - display_name: Large on the A100
      slug: a100
      kubespawner_override:
        cpu_limit: 8
        mem_limit: 32G
        node_selector: {gpu: a100}
        environment: {SIZE: large}
        extra_resource_limits: {nvidia.com/gpu: "2"}
        tolerations:
          - {key: gpu, operator: Equal, value: a100, effect: NoSchedule}
      profile_options:
        image:
          display_name: Image
          choices:
            torch: {display_name: PyTorch, default: true, kubespawner_override: {image: "gpulab.local/torch:1"}}
            jax: {display_name: JAX, kubespawner_override: {image: "gpulab.local/jax:1"}}
scheduling:
  userScheduler: {enabled: false}
  userPlaceholder: {enabled: false}
  podPriority: {enabled: true}
  corePods:
    tolerations: [{key: hub.jupyter.org/dedicated, operator: Equal, value: core, effect: NoSchedule}]
    nodeAffinity: {matchNodePurpose: require}
  userPods:
    tolerations: [{key: hub.jupyter.org/dedicated, operator: Equal, value: user, effect: NoSchedule}]
    nodeAffinity: {matchNodePurpose: prefer}
proxy:
  service: {type: ClusterIP}
  https: {enabled: false}
prePuller:
  hook: {enabled: false}
  continuous: {enabled: false}
ingress: {enabled: false}
cull: {enabled: false, timeout: 3600, every: 300}
debug: {enabled: true}
custom: {dir: /users/shared}
`

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	var parsed map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &parsed); err != nil {
		t.Fatalf("%v in\n%s", err, values)
	}
	return parsed
}

// Every one of the usual values arrives in the hub's pod or in a notebook's.
func TestUsualValuesAreHonoured(t *testing.T) {
	t.Parallel()
	in := sampleInputs()
	in.HubValues = parse(t, usualValues)
	if err := CheckHubValues(in.HubValues); err != nil {
		t.Fatalf("refused:\n%v", err)
	}
	r := release(t, in, "jupyterhub")
	objects := mustRender(t, r)

	hub := at(t, objects["Deployment hub"], "spec", "template")
	for path, want := range map[string]any{
		"metadata.labels.team":                                    "physics",
		"metadata.labels.app.kubernetes.io/component":             "hub",
		"metadata.annotations.note":                               "hello",
		"spec.nodeSelector.disk":                                  "ssd",
		"spec.nodeSelector.node-role.kubernetes.io/control-plane": "true",
	} {
		if got := dotted(t, hub, path); got != want {
			t.Errorf("hub: %s is %v, want %v", path, got, want)
		}
	}
	container := at(t, hub, "spec", "containers", 0)
	holds(t, "the hub's environment", at(t, container, "env"), "LAB", "physics", "there")
	holds(t, "the hub's resources", at(t, container, "resources"), "256Mi")
	holds(t, "the hub's mounts", at(t, container, "volumeMounts"), "/extra")
	holds(t, "the hub's volumes", at(t, hub, "spec", "volumes"), "extra")
	holds(t, "the hub's tolerations", at(t, hub, "spec", "tolerations"), "core", "hub.jupyter.org/dedicated")
	holds(t, "the hub's affinity", at(t, hub, "spec", "affinity"), "requiredDuring", "node-purpose")
	holds(t, "the hub's policy", at(t, objects["NetworkPolicy hub"], "spec", "egress"), "636")

	pods := spawn(t, r, "ada", "n",
		map[string]any{"uid": 20001},
		map[string]any{"uid": 20001, "profile": "a100", "image": "jax"})
	for _, pod := range pods {
		if pod.Error != "" {
			t.Fatal(pod.Error)
		}
	}
	small, large := pods[0].Pod, pods[1].Pod
	notebook := at(t, small, "spec", "containers", 0)
	for path, want := range map[string]any{
		"image":                             "gpulab.local/physics:2024",
		"workingDir":                        "/users/ada",
		"resources.limits.cpu":              2.0,
		"resources.requests.cpu":            0.5,
		"resources.limits.memory":           2147483648.0,
		"resources.requests.memory":         1073741824.0,
		"resources.limits.example.com/fpga": "1",
	} {
		if got := dotted(t, notebook, path); got != want {
			t.Errorf("notebook: %s is %v, want %v", path, got, want)
		}
	}
	holds(t, "command", at(t, notebook, "args"), "start-singleuser.sh")
	holds(t, "environment", at(t, notebook, "env"), "vim", "metadata.name", "/tree", "/users/shared", "JUPYTERHUB_DEBUG")
	holds(t, "hooks", at(t, notebook, "lifecycle"), "postStart")
	holds(t, "mounts", at(t, notebook, "volumeMounts"), "/data", "/users/ada", "/dev/shm")
	holds(t, "volumes", at(t, small, "spec", "volumes"), "/srv/data", "home")
	holds(t, "labels", at(t, small, "metadata", "labels"), "p101", "notebook", "ada")
	holds(t, "annotations", at(t, small, "metadata", "annotations"), "42")
	holds(t, "node selector", at(t, small, "spec", "nodeSelector"), "users")
	holds(t, "tolerations", at(t, small, "spec", "tolerations"), "nvidia.com/gpu", "hub.jupyter.org/dedicated")
	holds(t, "affinity", at(t, small, "spec", "affinity"), "zone", "node-purpose", "preferredDuring")
	holds(t, "pod", at(t, small, "spec"), "shareProcessNamespace")
	holds(t, "init containers", at(t, small, "spec", "initContainers"), "warm")
	holds(t, "containers", at(t, small, "spec", "containers"), "side")

	notebook = at(t, large, "spec", "containers", 0)
	for path, want := range map[string]any{
		"image":                             "gpulab.local/jax:1",
		"resources.limits.cpu":              8.0,
		"resources.limits.nvidia.com/gpu":   "2",
		"resources.limits.example.com/fpga": "1",
	} {
		if got := dotted(t, notebook, path); got != want {
			t.Errorf("large notebook: %s is %v, want %v", path, got, want)
		}
	}
	holds(t, "its environment", at(t, notebook, "env"), "vim", "large")
	holds(t, "its node selector", at(t, large, "spec", "nodeSelector"), "a100", "users")
	holds(t, "its tolerations", at(t, large, "spec", "tolerations"), "a100")

	config := hubConfig(t, r)
	for path, want := range map[string]any{
		"JupyterHub.concurrent_spawn_limit":      5.0,
		"JupyterHub.active_server_limit":         40.0,
		"JupyterHub.named_server_limit_per_user": 4.0,
		"JupyterHub.log_level":                   "DEBUG",
		"JupyterHub.template_vars.announcement":  "Maintenance on Friday",
		"KubeSpawner.consecutive_failure_limit":  5.0,
		"KubeSpawner.start_timeout":              90.0,
		"KubeSpawner.k8s_api_request_timeout":    7.0,
		"KubeSpawner.slug_scheme":                "safe",
	} {
		if got := dotted(t, config, path); got != want {
			t.Errorf("configuration: %s is %v, want %v", path, got, want)
		}
	}
	holds(t, "services", at(t, config, "JupyterHub", "services"), "report-token-0123456789", "gpulab")
	holds(t, "roles", at(t, config, "JupyterHub", "load_roles"), "report", "access:servers!user")
}

// holds reports what is not to be found anywhere in a value.
func holds(t *testing.T, what string, value any, wanted ...string) {
	t.Helper()
	raw, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wanted {
		if !strings.Contains(string(raw), w) {
			t.Errorf("%s: no %q in\n%s", what, w, raw)
		}
	}
}

// What cannot be honoured is refused with a sentence that names it.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"cull: {enabled: true}":                                                                          "cull: gpulab ends idle notebooks itself",
		"cull: {timeout: 3600, every: 300}":                                                              "cull: gpulab ends idle notebooks itself",
		"ingress: {enabled: true, hosts: [lab.example.org]}":                                             "ingress: gpulab serves pages",
		"prePuller: {hook: {enabled: true}}":                                                             "prePuller.hook: images are on every node",
		"prePuller: {continuous: {enabled: true}}":                                                       "prePuller.continuous: images are on every node",
		"prePuller: {extraImages: {a: {name: b, tag: c}}}":                                               "prePuller.extraImages: gpulab imports",
		"scheduling: {userScheduler: {enabled: true}}":                                                   "scheduling.userScheduler: notebooks use the cluster's own",
		"scheduling: {userPlaceholder: {enabled: true, replicas: 3}}":                                    "scheduling.userPlaceholder: machines of a lab",
		"scheduling: {podPriority: {enabled: false}}":                                                    "scheduling.podPriority: gpulab's pods always",
		"scheduling: {podPriority: {enabled: true, defaultPriority: 7}}":                                 "scheduling.podPriority: the priorities are gpulab's",
		"scheduling: {userPods: {nodeAffinity: {matchNodePurpose: maybe}}}":                              "scheduling.userPods.nodeAffinity.matchNodePurpose: value must be one of",
		"proxy: {service: {type: LoadBalancer}}":                                                         "proxy.service: gpulab is the hub's proxy",
		"proxy: {https: {enabled: true, hosts: [a.b]}}":                                                  "proxy.https: gpulab is the hub's proxy",
		"proxy: {chp: {resources: {}}}":                                                                  "proxy.chp: gpulab is the hub's proxy",
		"proxy: {secretToken: 0123456789abcdef0123}":                                                     "proxy.secretToken: gpulab makes this secret",
		"hub: {cookieSecret: abc}":                                                                       "hub.cookieSecret: gpulab makes this secret",
		"gpulab: {hostUsers: true}":                                                                      "gpulab: these values are passed by gpulab",
		"auth: {type: github}":                                                                           "auth.type: people sign in to gpulab",
		"rbac: {create: false}":                                                                          "rbac: the hub cannot start notebooks",
		"hub: {allowNamedServers: false}":                                                                "hub.allowNamedServers: every notebook is a named server",
		"hub: {baseUrl: /jupyter}":                                                                       "hub.baseUrl: the hub has an origin",
		"hub: {redirectToServer: true}":                                                                  "hub.redirectToServer: the default server",
		"hub: {shutdownOnLogout: true}":                                                                  "hub.shutdownOnLogout: notebooks go on",
		"hub: {db: {type: postgres, url: 'postgresql://x'}}":                                             "hub.db: the hub keeps its state in SQLite",
		"hub: {db: {pvc: {storage: 1Gi}}}":                                                               "hub.db: the hub keeps its state in SQLite",
		"hub: {pdb: {enabled: true}}":                                                                    "hub.pdb: there is one hub",
		"hub: {service: {type: NodePort}}":                                                               "hub.service.type: the hub is reached",
		"hub: {networkPolicy: {enabled: false}}":                                                         "hub.networkPolicy.enabled: the hub is always",
		"hub: {existingSecret: mine}":                                                                    "hub.existingSecret: the hub's pod is gpulab's",
		"hub: {extraFiles: {a: {mountPath: /a}}}":                                                        "hub.extraFiles: the hub's pod is gpulab's",
		"hub: {loadRoles: {user: {scopes: [self]}}}":                                                     "hub.loadRoles.user: this role keeps people",
		"hub: {services: {gpulab: {admin: true}}}":                                                       "hub.services.gpulab: this name is gpulab's",
		"hub: {config: {GitHubOAuthenticator: {client_id: x}}}":                                          "hub.config.GitHubOAuthenticator: sign-in and proxy",
		"hub: {config: {Authenticator: {admin_users: [a]}}}":                                             "hub.config.Authenticator: sign-in and proxy",
		"hub: {config: {ConfigurableHTTPProxy: {debug: true}}}":                                          "hub.config.ConfigurableHTTPProxy: sign-in and proxy",
		"hub: {config: {JupyterHub: {authenticator_class: dummy}}}":                                      "hub.config.JupyterHub.authenticator_class: people sign in",
		"hub: {config: {JupyterHub: {load_roles: []}}}":                                                  "hub.config.JupyterHub.load_roles: use hub.loadRoles",
		"hub: {config: {KubeSpawner: {privileged: true}}}":                                               "hub.config.KubeSpawner.privileged: it belongs to what keeps",
		"hub: {config: {KubeSpawner: {http_timeout: 30}}}":                                               "hub.config.KubeSpawner.http_timeout: a restarted hub",
		"hub: {config: {Spawner: {environment: {A: b}}}}":                                                "hub.config.Spawner.environment: use singleuser.extraEnv",
		"hub: {command: [sh]}":                                                                           "hub.command: gpulab's chart has no such value",
		"hub: {concurrentSpawnLimit: many}":                                                              "hub.concurrentSpawnLimit: got string, want integer",
		"singleuser: {storage: {type: dynamic}}":                                                         `singleuser.storage.type "dynamic": gpulab makes every home`,
		"singleuser: {storage: {type: none}}":                                                            `singleuser.storage.type "none": gpulab makes every home`,
		"singleuser: {storage: {capacity: 20Gi}}":                                                        "singleuser.storage.capacity: gpulab makes every home",
		"singleuser: {storage: {static: {pvcName: nfs}}}":                                                "singleuser.storage.static: the home is the claim",
		"singleuser: {storage: {dynamic: {storageClass: fast}}}":                                         "singleuser.storage.dynamic: gpulab makes every home",
		"singleuser: {cloudMetadata: {blockWithIptables: true}}":                                         "singleuser.cloudMetadata: the user's network policy",
		"singleuser: {networkPolicy: {enabled: false}}":                                                  "singleuser.networkPolicy: each user's network policy",
		"singleuser: {uid: 0}":                                                                           "singleuser.uid: everybody has a user ID",
		"singleuser: {uid: 1000}":                                                                        "singleuser.uid: everybody has a user ID",
		"singleuser: {fsGid: 100}":                                                                       "singleuser.fsGid: everybody has a user ID",
		"singleuser: {allowPrivilegeEscalation: true}":                                                   "singleuser.allowPrivilegeEscalation: notebooks run without",
		"singleuser: {serviceAccountName: admin}":                                                        "singleuser.serviceAccountName: notebooks have no rights",
		"singleuser: {image: {pullSecrets: [a]}}":                                                        "singleuser.image.pullSecrets: images are imported",
		"singleuser: {extraFiles: {a: {mountPath: /a}}}":                                                 "singleuser.extraFiles: files for everybody",
		"singleuser: {extraLabels: {gpulab.dev/user: root}}":                                             "singleuser.extraLabels.gpulab.dev/user: gpulab finds",
		"singleuser: {extraEnv: {HOME: /root}}":                                                          "singleuser.extraEnv.HOME: it is where the home",
		"singleuser: {extraPodConfig: {hostNetwork: true}}":                                              "singleuser.extraPodConfig.hostNetwork: it belongs",
		"singleuser: {gpu: 1}":                                                                           "singleuser.gpu: gpulab's chart has no such value",
		"singleuser: {profileList: [{display_name: X, kubespawner_override: {privileged: true}}]}":       `profile "X", privileged: it belongs`,
		"singleuser: {profileList: [{display_name: X, kubespawner_override: {volumes: []}}]}":            `profile "X", volumes: it would take the home away`,
		"singleuser: {profileList: [{display_name: X, kubespawner_override: {environment: {HOME: /}}}]}": `profile "X", environment.HOME`,
		"singleuser: {profileList: [{display_name: X, kubespawner_override: {extra_labels: {gpulab.dev/user: bob}}}]}":                            `profile "X", label gpulab.dev/user`,
		"singleuser: {profileList: [{display_name: X, profile_options: {o: {choices: {c: {display_name: C, kubespawner_override: {uid: 0}}}}}}]}": `profile "X", uid: it belongs`,
		"singleuser: {profileList: [{slug: Big One, display_name: X}]}":                                                                           "singleuser.profileList.0.slug:",
		"imagePullSecrets: [a]": "imagePullSecrets: gpulab's chart has no such value",
	} {
		err := CheckHubValues(parse(t, values))
		if err == nil {
			t.Errorf("%s: accepted", values)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: refused with %q, want %q in it", values, err, want)
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			if strings.Contains(line, "templates/") || strings.Contains(line, "schema") {
				t.Errorf("%s: %q speaks of the chart's insides", values, line)
			}
		}
	}
}

// Several mistakes are told at once.
func TestRefusalsAreToldTogether(t *testing.T) {
	err := CheckHubValues(parse(t, "cull: {enabled: true}\ningress: {enabled: true}\nhub: {baseUrl: /x}"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v", err)
	}
}
