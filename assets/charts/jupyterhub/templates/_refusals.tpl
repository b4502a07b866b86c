{{- /*
Values of Zero to JupyterHub that cannot be honoured here. Each is refused with
one sentence that says why and what to do instead: a value that is silently
without effect costs its author an afternoon. All of them are told at once.
Values that only say "off" to what is off are accepted.
*/ -}}

{{- define "jupyterhub.refuse" -}}
{{- $v := .Values }}
{{- $said := list }}

{{- /* Whole parts of z2jh. */}}
{{- if and $v.cull (ne (toString $v.cull.enabled) "false") }}
  {{- $said = append $said "cull: gpulab ends idle notebooks itself, by what their GPU and kernels do; set cull.enabled to false." }}
{{- end }}
{{- if or $v.ingress.enabled $v.ingress.hosts $v.ingress.tls }}
  {{- $said = append $said "ingress: gpulab serves pages and notebooks itself; set ingress.enabled to false." }}
{{- end }}
{{- range $part := list "hook" "continuous" }}
  {{- if dig $part "enabled" false $v.prePuller }}
    {{- $said = append $said (printf "prePuller.%s: images are on every node before notebooks start; set prePuller.%s.enabled to false." $part $part) }}
  {{- end }}
{{- end }}
{{- with $v.prePuller.extraImages }}
  {{- $said = append $said "prePuller.extraImages: gpulab imports images itself; leave it out." }}
{{- end }}
{{- range $key, $_ := $v.auth }}
  {{- $said = append $said (printf "auth.%s: people sign in to gpulab, which tells the hub who they are; manage them with gpulab user." $key) }}
{{- end }}
{{- if or (eq (toString $v.rbac.create) "false") (eq (toString $v.rbac.enabled) "false") }}
  {{- $said = append $said "rbac: the hub cannot start notebooks without its rights; leave rbac out." }}
{{- end }}

{{- /* Scheduling. */}}
{{- if dig "userScheduler" "enabled" false $v.scheduling }}
  {{- $said = append $said "scheduling.userScheduler: notebooks use the cluster's own scheduler; set scheduling.userScheduler.enabled to false." }}
{{- end }}
{{- if or (dig "userPlaceholder" "enabled" false $v.scheduling) (gt (int (dig "userPlaceholder" "replicas" 0 $v.scheduling)) 0) }}
  {{- $said = append $said "scheduling.userPlaceholder: machines of a lab are not added by an autoscaler, so there is nothing to hold a place for; leave it out." }}
{{- end }}
{{- with dig "podPriority" dict $v.scheduling }}
  {{- if not .enabled }}
    {{- $said = append $said "scheduling.podPriority: gpulab's pods always have priorities; leave it out." }}
  {{- else if omit . "enabled" }}
    {{- $said = append $said "scheduling.podPriority: the priorities are gpulab's; only enabled may be given." }}
  {{- end }}
{{- end }}

{{- /* The proxy. */}}
{{- range $key, $value := omit $v.proxy "secretToken" }}
  {{- if and (eq $key "https") (not $value.enabled) (not (omit $value "enabled")) }}
  {{- else if and (eq $key "service") (eq (dig "type" "" $value) "ClusterIP") (not (omit $value "type")) }}
  {{- else }}
    {{- $said = append $said (printf "proxy.%s: gpulab is the hub's proxy and holds its certificate and ports; set those in gpulab's configuration." $key) }}
  {{- end }}
{{- end }}

{{- /* The hub. */}}
{{- if not $v.hub.allowNamedServers }}
  {{- $said = append $said "hub.allowNamedServers: every notebook is a named server here; leave it out." }}
{{- end }}
{{- if ne (toString (default "/" $v.hub.baseUrl)) "/" }}
  {{- $said = append $said "hub.baseUrl: the hub has an origin of its own, so its address begins at /; leave it out." }}
{{- end }}
{{- if $v.hub.redirectToServer }}
  {{- $said = append $said "hub.redirectToServer: the default server is not used here; leave it out." }}
{{- end }}
{{- if $v.hub.shutdownOnLogout }}
  {{- $said = append $said "hub.shutdownOnLogout: notebooks go on when their owner signs out; leave it out." }}
{{- end }}
{{- with $v.hub.db }}
  {{- if or (ne (default "sqlite-pvc" .type) "sqlite-pvc") .url .password .pvc }}
    {{- $said = append $said "hub.db: the hub keeps its state in SQLite on the head, where gpulab backs it up; leave it out." }}
  {{- end }}
{{- end }}
{{- if dig "enabled" false (default dict $v.hub.pdb) }}
  {{- $said = append $said "hub.pdb: there is one hub, and a budget would keep its node from being drained; leave it out." }}
{{- end }}
{{- if ne (dig "type" "ClusterIP" (default dict $v.hub.service)) "ClusterIP" }}
  {{- $said = append $said "hub.service.type: the hub is reached through gpulab alone; leave it out." }}
{{- end }}
{{- if not $v.hub.networkPolicy.enabled }}
  {{- $said = append $said "hub.networkPolicy.enabled: the hub is always behind a network policy; add rules under ingress and egress instead." }}
{{- end }}
{{- range $key := list "existingSecret" "extraFiles" "publicURL" "serviceAccount" "deploymentStrategy" "initContainers" "extraContainers" }}
  {{- if hasKey $v.hub $key }}
    {{- $said = append $said (printf "hub.%s: the hub's pod is gpulab's; use hub.config or hub.extraConfig." $key) }}
  {{- end }}
{{- end }}
{{- range $name, $_ := $v.hub.loadRoles }}
  {{- if has $name (list "user" "gpulab" "admin" "server" "token") }}
    {{- $said = append $said (printf "hub.loadRoles.%s: this role keeps people from starting servers past gpulab's queue; choose another name." $name) }}
  {{- end }}
{{- end }}
{{- if hasKey $v.hub.services "gpulab" }}
  {{- $said = append $said "hub.services.gpulab: this name is gpulab's own; choose another." }}
{{- end }}
{{- range $class, $traits := $v.hub.config }}
  {{- if or (hasSuffix "Authenticator" $class) (hasSuffix "Proxy" $class) }}
    {{- $said = append $said (printf "hub.config.%s: sign-in and proxy are gpulab's; leave it out." $class) }}
  {{- end }}
  {{- $owned := dict }}
  {{- if eq $class "JupyterHub" }}
    {{- $owned = include "jupyterhub.ownedByHub" $ | fromJson }}
  {{- else if has $class (list "Spawner" "KubeSpawner" "LocalProcessSpawner") }}
    {{- $owned = include "jupyterhub.ownedBySpawner" $ | fromJson }}
  {{- end }}
  {{- range $trait, $value := $traits }}
    {{- if hasKey $owned $trait }}
      {{- $said = append $said (printf "hub.config.%s.%s: %s." $class $trait (get $owned $trait)) }}
    {{- end }}
    {{- if and (eq $trait "http_timeout") (lt (int $value) 600) }}
      {{- $said = append $said (printf "hub.config.%s.http_timeout: a restarted hub stops every server that does not answer in this time; give at least 600." $class) }}
    {{- end }}
  {{- end }}
{{- end }}

{{- /* Notebooks. */}}
{{- with $v.singleuser.storage }}
  {{- if ne .type "static" }}
    {{- $said = append $said (printf "singleuser.storage.type %q: gpulab makes every home itself; leave it out." .type) }}
  {{- else if or (ne (dig "static" "pvcName" "home" .) "home") (dig "static" "subPath" "" .) }}
    {{- $said = append $said "singleuser.storage.static: the home is the claim \"home\" that gpulab makes for each user; leave it out." }}
  {{- end }}
  {{- range $key := list "capacity" "dynamic" "extraLabels" }}
    {{- if hasKey $v.singleuser.storage $key }}
      {{- $said = append $said (printf "singleuser.storage.%s: gpulab makes every home itself; leave it out." $key) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- range $key, $why := dict
    "allowPrivilegeEscalation" "notebooks run without any privilege"
    "cloudMetadata" "the user's network policy closes it, without a privileged container"
    "extraFiles" "files for everybody belong into a shared folder or the image"
    "fsGid" "everybody has a user ID of their own, which owns their home"
    "imagePullSecret" "images are imported by gpulab"
    "networkPolicy" "each user's network policy is gpulab's"
    "networkTools" "no privileged container is needed"
    "serviceAccountName" "notebooks have no rights in the cluster"
    "uid" "everybody has a user ID of their own, which owns their home"
}}
  {{- $value := dig $key nil $v.singleuser }}
  {{- if and (eq $key "cloudMetadata") (kindIs "map" $value) (not $value.blockWithIptables) }}
  {{- else if not (or (kindIs "invalid" $value) (eq (toString $value) "false")) }}
    {{- $said = append $said (printf "singleuser.%s: %s; leave it out." $key $why) }}
  {{- end }}
{{- end }}
{{- if $v.singleuser.image.pullSecrets }}
  {{- $said = append $said "singleuser.image.pullSecrets: images are imported by gpulab; leave it out." }}
{{- end }}
{{- range $key, $_ := $v.singleuser.extraLabels }}
  {{- if or (hasPrefix "gpulab.dev/" $key) (eq $key "app.kubernetes.io/component") }}
    {{- $said = append $said (printf "singleuser.extraLabels.%s: gpulab finds notebooks by it; choose another name." $key) }}
  {{- end }}
{{- end }}
{{- if hasKey $v.singleuser.extraEnv "HOME" }}
  {{- $said = append $said "singleuser.extraEnv.HOME: it is where the home is mounted; use singleuser.storage.homeMountPath." }}
{{- end }}
{{- range $key, $_ := $v.singleuser.extraPodConfig }}
  {{- if has $key (list "hostNetwork" "hostPID" "hostIPC" "hostUsers" "securityContext" "serviceAccountName" "automountServiceAccountToken" "enableServiceLinks" "restartPolicy") }}
    {{- $said = append $said (printf "singleuser.extraPodConfig.%s: it belongs to what keeps notebooks apart; leave it out." $key) }}
  {{- end }}
{{- end }}
{{- $owned := include "jupyterhub.ownedBySpawner" . | fromJson }}
{{- $profiles := $v.singleuser.profileList }}
{{- if kindIs "map" $profiles }}{{ $profiles = values $profiles }}{{ end }}
{{- range $profile := $profiles }}
  {{- $overrides := list (default dict $profile.kubespawner_override) }}
  {{- range $option := default dict $profile.profile_options }}
    {{- range $choice := default dict $option.choices }}
      {{- $overrides = append $overrides (default dict $choice.kubespawner_override) }}
    {{- end }}
    {{- $overrides = append $overrides (dig "unlisted_choice" "kubespawner_override" dict $option) }}
  {{- end }}
  {{- range $override := $overrides }}
    {{- range $trait, $value := $override }}
      {{- /* Dicts are merged in a profile, so these two may be added to. */}}
      {{- if and (hasKey $owned $trait) (not (has $trait (list "environment" "extra_labels"))) }}
        {{- $said = append $said (printf "singleuser.profileList, profile %q, %s: %s." $profile.display_name $trait (get $owned $trait)) }}
      {{- end }}
    {{- end }}
    {{- if hasKey (default dict $override.environment) "HOME" }}
      {{- $said = append $said (printf "singleuser.profileList, profile %q, environment.HOME: it is where the home is mounted." $profile.display_name) }}
    {{- end }}
    {{- range $key, $_ := default dict $override.extra_labels }}
      {{- if or (hasPrefix "gpulab.dev/" $key) (eq $key "app.kubernetes.io/component") }}
        {{- $said = append $said (printf "singleuser.profileList, profile %q, label %s: gpulab finds notebooks by it." $profile.display_name $key) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}

{{- if $said }}
  {{- fail (join "\n" (uniq $said)) }}
{{- end }}
{{- end }}

{{- /* Traits that gpulab sets, and what to do instead; as JSON. */}}
{{- define "jupyterhub.ownedByHub" -}}
{{- $own := "gpulab sets it; leave it out" }}
{{- dict
    "allow_named_servers" "every notebook is a named server here; leave it out"
    "authenticator_class" "people sign in to gpulab, which tells the hub who they are; leave it out"
    "base_url" $own
    "bind_url" $own
    "cleanup_proxy" $own
    "cleanup_servers" "notebooks outlive the hub; leave it out"
    "cookie_secret" "use hub.cookieSecret"
    "custom_scopes" "use hub.extraConfig"
    "db_url" "the hub keeps its state in SQLite on the head; leave it out"
    "hub_bind_url" $own
    "hub_connect_ip" $own
    "hub_connect_url" $own
    "hub_ip" $own
    "hub_port" $own
    "ip" $own
    "load_roles" "use hub.loadRoles"
    "port" $own
    "proxy_class" "gpulab is the proxy; leave it out"
    "services" "use hub.services"
    "spawner_class" $own
    "subdomain_host" $own
  | toJson }}
{{- end }}

{{- define "jupyterhub.ownedBySpawner" -}}
{{- $apart := "it belongs to what keeps notebooks apart; leave it out" }}
{{- $home := "it would take the home away; use singleuser.storage" }}
{{- dict
    "allow_privilege_escalation" $apart
    "automount_service_account_token" $apart
    "component_label" "gpulab finds notebooks by it; leave it out"
    "container_security_context" $apart
    "delete_pvc" "homes are gpulab's; leave it out"
    "enable_user_namespaces" $apart
    "environment" "use singleuser.extraEnv"
    "extra_labels" "use singleuser.extraLabels"
    "extra_pod_config" "use singleuser.extraPodConfig"
    "fs_gid" $apart
    "gid" $apart
    "ip" "gpulab sets it; leave it out"
    "modify_pod_hook" "gpulab sets it; leave it out"
    "namespace" $apart
    "pod_security_context" $apart
    "port" "gpulab sets it; leave it out"
    "privileged" $apart
    "service_account" $apart
    "storage_pvc_ensure" "homes are gpulab's; leave it out"
    "uid" $apart
    "user_namespace_template" $apart
    "volume_mounts" $home
    "volumes" $home
    "working_dir" $home
  | toJson }}
{{- end }}
