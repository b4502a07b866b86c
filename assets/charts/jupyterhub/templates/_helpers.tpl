{{- define "jupyterhub.labels" -}}
app.kubernetes.io/name: jupyterhub
app.kubernetes.io/component: hub
{{- end }}

{{- /* The pods that people run. */}}
{{- define "jupyterhub.notebooks" -}}
namespaceSelector:
  matchExpressions:
    - {key: gpulab.dev/user, operator: Exists}
podSelector:
  matchLabels: {app.kubernetes.io/component: notebook}
{{- end }}
