{{- define "broker-group.name" -}}
{{- default .Release.Name .Values.name -}}
{{- end -}}

{{- define "broker-group.labels" -}}
app.kubernetes.io/name: gantry
app.kubernetes.io/instance: {{ include "broker-group.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}
