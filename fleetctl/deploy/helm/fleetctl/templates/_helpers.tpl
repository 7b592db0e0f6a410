{{/* Labels that select: the release and one of its parts. Called with (list . "controller"). */}}
{{- define "fleetctl.selector" -}}
app.kubernetes.io/name: fleetctl
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of an object. */}}
{{- define "fleetctl.labels" -}}
{{ include "fleetctl.selector" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "fleetctl.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Addresses of single pods of a StatefulSet: (list . "gateway" replicas port). */}}
{{- define "fleetctl.pods" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- range $number := until (int (index . 2)) }}
- http://{{ $root.Release.Name }}-{{ $part }}-{{ $number }}.{{ $root.Release.Name }}-{{ $part }}-pods:{{ index $ 3 }}
{{- end }}
{{- end }}

{{- define "fleetctl.settings" -}}
{{- $controller := dict "url" (printf "http://%s-controller:7700" .Release.Name) "restart_gateway" false -}}
{{- $_ := set $controller "gateways" (include "fleetctl.pods" (list . "gateway" .Values.gateway.replicas 7800) | fromYamlArray) -}}
{{- if gt (int .Values.controller.replicas) 1 -}}
{{- $_ := set $controller "peers" (include "fleetctl.pods" (list . "controller" .Values.controller.replicas 7700) | fromYamlArray) -}}
{{- end -}}
{{- $gateway := dict "host" (printf "%s-gateway-0.%s-gateway-pods" .Release.Name .Release.Name) -}}
{{- $pods := omit .Values.fleet "namespaces" -}}
{{- with .Values.fleet.namespaces }}{{- $_ := set $pods "namespaces" . -}}{{- end -}}
{{- $made := dict "log" (dict "format" "json") "controller" $controller "gateway" $gateway -}}
{{- $_ := set $made "providers" (dict "kubernetes" $pods) -}}
{{- mergeOverwrite $made (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{- define "fleetctl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fleetctl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Volumes that controller and gateway have alike. */}}
{{- define "fleetctl.volumes" -}}
- {name: settings, configMap: {name: {{ .Release.Name }}-settings}}
- name: tokens
  secret:
    secretName: {{ .Values.tokens.existingSecret }}
    defaultMode: 288 # 0440
    items: [{key: node.token, path: node.token}]
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
{{- end }}

{{- define "fleetctl.volumeMounts" -}}
- {name: settings, mountPath: /etc/fleetctl, readOnly: true}
- {name: state, mountPath: /var/lib/fleetctl}
- {name: tokens, mountPath: /var/lib/fleetctl/node.token, subPath: node.token, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}
