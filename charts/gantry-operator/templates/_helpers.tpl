{{/* The name of all objects in this release. */}}
{{- define "gantry-operator.name" -}}
{{- if contains "gantry-operator" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gantry-operator" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels that select the operator's pods; they never change in a release. */}}
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

{{/* The name of the operator as a user of the API server. */}}
{{- define "gantry-operator.user" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "gantry-operator.serviceAccount" .) -}}
{{- end -}}

{{/* The reference of an image, by digest if one is given. Takes the image's values and the chart's version. */}}
{{- define "gantry-operator.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .version .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The operator's rights on groups and pipelines, and on their objects. */}}
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
  resources: [pods/resize]
  verbs: [patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots]
  verbs: [get, list, create, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# The operator creates the Secrets of a group, and can read no Secret except its own key, so not even these.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# The proxies and the archive server of a group. No Deployment is read by its name.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch, create, patch, delete]
# The record of each shard. The operator also needs `update` because it grants this right to sidecars.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# External access through a Gateway: routes belong to groups, Gateways are only read. Neither is read by its name.
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [tcproutes]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.rbac.executors }}
# The binding of a driver to this one role. So the operator itself need not have its rights, such as to create pods.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ ternary "roles" "clusterroles" (not (empty .Values.namespaces)) }}]
  resourceNames: [{{ include "gantry-operator.name" . }}-executors]
  verbs: [bind]
{{- end }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
# The certificates of groups with access.certificates.issuer CertManager. Their Secrets are never read.
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, list, create, patch, delete]
{{- end -}}

{{/* The role with which Spark drivers create executors, as KIND/NAME. */}}
{{- define "gantry-operator.executorsRole" -}}
{{- printf "%s/%s-executors" (ternary "Role" "ClusterRole" (not (empty .Values.namespaces))) (include "gantry-operator.name" .) -}}
{{- end -}}

{{/* The rights of a driver: on all pods in its namespace, for its executors; on nothing else. */}}
{{- define "gantry-operator.executorsRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
{{- end -}}

{{/* Labels as `name=value,...`, sorted by name. */}}
{{- define "gantry-operator.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}
