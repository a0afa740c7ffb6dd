{{- define "rlguard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of a cluster-scoped object: two releases may have the same name in two namespaces. */}}
{{- define "rlguard.clusterName" -}}
{{ .Release.Namespace }}-{{ include "rlguard.fullname" . }}
{{- end -}}

{{- define "rlguard.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rlguard.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "rlguard.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "rlguard.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name must be set when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Image reference. Takes a dict of image and root; the digest wins over the tag. */}}
{{- define "rlguard.image" -}}
{{- $name := .image.repository -}}
{{- if .image.registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" .image.registry) $name -}}{{- end -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* What every container of this chart is confined to. The image's user is 10001. */}}
{{- define "rlguard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}
