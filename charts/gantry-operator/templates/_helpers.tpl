{{/* The name of everything in this release. */}}
{{- define "gantry-operator.name" -}}
{{- if contains "gantry-operator" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gantry-operator" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What the operator's pods are selected by; never changes in a release. */}}
{{- define "gantry-operator.selector" -}}
app.kubernetes.io/name: gantry-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gantry-operator.labels" -}}
{{ include "gantry-operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: gantry
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gantry-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gantry-operator.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed with serviceAccount.create=false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image: by digest where there is one. Takes the image's values and the chart's version. */}}
{{- define "gantry-operator.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .version .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What the operator may do with groups and with what it makes of them. */}}
{{- define "gantry-operator.groupRules" -}}
- apiGroups: [gantry.dev]
  resources: [brokergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [gantry.dev]
  resources: [brokergroups/status]
  verbs: [patch]
- apiGroups: [gantry.dev]
  resources: [topicarchives, logaudits, topicanalytics]
  verbs: [get, list, watch]
- apiGroups: [gantry.dev]
  resources: [topicarchives/status, logaudits/status, topicanalytics/status]
  verbs: [patch]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# Of Secrets it makes one for each group, and reads none, not even those.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# The record of each shard. `update` is also what its sidecars are given, and nobody gives what he has not.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.executors }}
# A driver's binding to this one role. So the operator makes no pods itself, and can hand out no other right.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ ternary "roles" "clusterroles" (not (empty .Values.namespaces)) }}]
  resourceNames: [{{ include "gantry-operator.name" . }}-executors]
  verbs: [bind]
{{- end }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}

{{/* The role by which Spark's drivers make executors, as KIND/NAME. */}}
{{- define "gantry-operator.executorsRole" -}}
{{- printf "%s/%s-executors" (ternary "Role" "ClusterRole" (not (empty .Values.namespaces))) (include "gantry-operator.name" .) -}}
{{- end -}}

{{/* What a driver may do: make its executors, watch them and take them away. Only that, and only pods. */}}
{{- define "gantry-operator.executorsRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
{{- end -}}

{{/* Labels as `name=value,...`, in the order of their names. */}}
{{- define "gantry-operator.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}
