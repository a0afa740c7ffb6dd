{{/* What the admission policies share. */}}

{{/* Whether a request is of nobody who may operate jobs: a permission that only an operator's Role gives. */}}
{{- define "rlguard.notAnOperator" -}}
!(request.userInfo.username.startsWith('system:serviceaccount:') && authorizer.group('rlguard.dev').resource('guardedtrainingjobs').namespace({{ .namespace }}).check('{{ .facts.operatorVerb }}').allowed())
{{- end }}

{{/* Name of the StatefulSet of a job's guard. */}}
{{- define "rlguard.guardName" -}}
({{ .job }}.metadata.name.size() > {{ .facts.guardNameLength }} ? {{ .job }}.metadata.name.substring(0, {{ .facts.guardNameLength }}) : {{ .job }}.metadata.name) + '-' + {{ .job }}.metadata.uid.substring(0, 8)
{{- end }}

{{/* The binding of a policy. With `jobs` it is evaluated with every job of the object's namespace. */}}
{{- define "rlguard.admissionBinding" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "rlguard.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  {{- if .jobs }}
  paramRef: {selector: {}, parameterNotFoundAction: Allow}
  {{- end }}
  validationActions: {{ toJson .root.Values.admissionPolicy.actions }}
  {{- with .root.Values.watchNamespaces }}
  matchResources:
    namespaceSelector:
      matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
  {{- end }}
{{- end }}

{{/* A list of strings as it stands in CEL. */}}
{{- define "rlguard.celStrings" -}}
{{- range $i, $text := . }}{{ if $i }}, {{ end }}'{{ $text }}'{{ end -}}
{{- end }}
