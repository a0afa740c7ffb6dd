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
{{- range $name, $value := .Values.commonLabels }}
{{- if not (or (hasPrefix "app.kubernetes.io/" $name) (eq $name "helm.sh/chart")) }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Labels of an object with others of its own, which go before commonLabels. Takes a dict of root and own. */}}
{{- define "rlguard.labelsWith" -}}
{{- merge (dict) (default (dict) .own) (include "rlguard.labels" .root | fromYaml) | toYaml -}}
{{- end -}}

{{- define "rlguard.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "rlguard.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name must be set when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Annotations of an object, as the whole field. Takes a dict of root and own, which go before commonAnnotations. */}}
{{- define "rlguard.annotations" -}}
{{- with merge (dict) (default (dict) .own) (default (dict) .root.Values.commonAnnotations) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Labels and annotations of an object that has no others. */}}
{{- define "rlguard.metadata" -}}
labels: {{- include "rlguard.labels" . | nindent 2 }}
{{ include "rlguard.annotations" (dict "root" .) }}
{{- end -}}

{{/* Image reference. Takes a dict of image and root; the digest wins over the tag. */}}
{{- define "rlguard.image" -}}
{{- $name := .image.repository -}}
{{- with default (default (dict) .root.Values.global).imageRegistry .image.registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}{{- end -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Pull secrets, as the whole field: of this chart, then of all charts, which may be names alone. */}}
{{- define "rlguard.pullSecrets" -}}
{{- $secrets := default (list) .Values.imagePullSecrets -}}
{{- range (default (dict) .Values.global).imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $secrets -}}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end -}}
{{- end -}}

{{/* Whether an object of the Prometheus operator is wanted: with `auto` where the cluster knows its kind. */}}
{{- define "rlguard.monitored" -}}
{{- if eq (toString .enabled) "auto" }}
{{- if .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}yes{{ end }}
{{- else if .enabled }}yes{{ end }}
{{- end -}}

{{/* Relabelings of an endpoint of a monitor, as whole fields. Takes the monitor's values. */}}
{{- define "rlguard.relabelings" -}}
{{- with .relabelings }}
relabelings: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
