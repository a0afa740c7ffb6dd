{{- define "rlguard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Where an alert is explained: in the documentation's tree, and as a link where somebody serves that. */}}
{{- define "rlguard.runbook" -}}
runbook: docs/tasks/troubleshooting.md#{{ .section }}
{{- with .site }}
runbook_url: "{{ . }}#{{ $.section }}"
{{- end }}
{{- end -}}

{{/* Name of a cluster-scoped object: two releases may have the same name in two namespaces. */}}
{{- define "rlguard.clusterName" -}}
{{ .Release.Namespace }}-{{ include "rlguard.fullname" . }}
{{- end -}}

{{- define "rlguard.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rlguard.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Image reference. Takes a dict of image and root; the digest wins over the tag. */}}
{{- define "rlguard.image" -}}
{{- with (default (dict) .root.Values.global).imageRegistry -}}{{ trimSuffix "/" . }}/{{- end -}}
{{ .image.repository }}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Pull secrets, which may be names or references, as the whole field. */}}
{{- define "rlguard.pullSecrets" -}}
{{- with (default (dict) .Values.global).imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
- {{ kindIs "string" . | ternary (dict "name" .) . | toJson }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* What confines the pods of this chart. They name no user: the image does, and OpenShift gives each namespace its own. */}}
{{- define "rlguard.podSecurityContext" -}}
securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
{{- end -}}
{{- define "rlguard.securityContext" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
