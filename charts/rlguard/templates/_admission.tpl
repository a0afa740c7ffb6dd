{{/*
Variables that the policies about pods share. Constants come from files/isolation.yaml, which is generated from
the operator's own refusals, so that the two cannot drift apart.
*/}}
{{- define "rlguard.admissionVariables" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml }}
- name: volumes
  expression: "object.spec.?volumes.orValue([])"
# In a pod of its own the guard is the container itself.
- name: alone
  expression: "{{ include "rlguard.isGuardPod" . }}"
- name: guards
  expression: "{{ include "rlguard.guardContainers" . }}"
# A trainer's pod whose guard is in another one. A label says so, to which the policies that know the job hold it; and
# whatever it says, there is no guard in this pod which could be reached by what is opened here.
- name: apart
  expression: "object.metadata.?labels[?'{{ $facts.placementLabel }}'].orValue('') == '{{ $facts.inAPod }}' && !variables.alone && variables.guards.size() == 0"
- name: guardPorts
  expression: >-
    variables.guards.map(c, c.?env.orValue([]).filter(e, e.name == 'RLGUARD_GUARD_PORT').map(e, e.?value.orValue('')))
- name: own
  expression: "variables.volumes.filter(v, v.name.startsWith('{{ $facts.reservedPrefix }}'))"
- name: guardClaims
  expression: "variables.own.filter(v, has(v.persistentVolumeClaim)).map(v, v.persistentVolumeClaim.claimName)"
# Volumes, and what its environment names: the evaluator's API key.
- name: guardSecrets
  expression: >-
    variables.own.filter(v, has(v.secret)).map(v, v.secret.?secretName.orValue(''))
    + (variables.guards.size() == 0 ? [] : variables.guards[0].?env.orValue([]).filter(e, has(e.valueFrom) && has(e.valueFrom.secretKeyRef)).map(e, e.valueFrom.secretKeyRef.?name.orValue('')))
- name: guardConfigMaps
  expression: "variables.own.filter(v, has(v.configMap)).map(v, v.configMap.?name.orValue(''))"
- name: podUser
  expression: "object.spec.?securityContext.?runAsUser.orValue(-1)"
{{- end }}

{{/* Whether a pod is that of a guard which shares it with nobody. A label says so, and the policies hold it to that. */}}
{{- define "rlguard.isGuardPod" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml -}}
object.metadata.?labels[?'{{ $facts.partLabel }}'].orValue('') == '{{ $facts.guardPart }}'
{{- end }}

{{/* The guards of a pod, of which it may have one. */}}
{{- define "rlguard.guardContainers" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml -}}
({{ include "rlguard.isGuardPod" . }} ? object.spec.containers : object.spec.?initContainers.orValue([])).filter(c, c.name == '{{ $facts.guardContainer }}')
{{- end }}

{{/* Whether a request is of nobody who may operate jobs: a permission that only an operator's Role gives. */}}
{{- define "rlguard.notAnOperator" -}}
!(request.userInfo.username.startsWith('system:serviceaccount:') && authorizer.group('rlguard.dev').resource('guardedtrainingjobs').namespace({{ .namespace }}).check('{{ .facts.operatorVerb }}').allowed())
{{- end }}

{{/* Name of the StatefulSet of a job's guard. */}}
{{- define "rlguard.guardName" -}}
({{ .job }}.metadata.name.size() > {{ .facts.guardNameLength }} ? {{ .job }}.metadata.name.substring(0, {{ .facts.guardNameLength }}) : {{ .job }}.metadata.name) + '-' + {{ .job }}.metadata.uid.substring(0, 8)
{{- end }}

{{/* Every container but the guard. A second one of its name is not the guard. */}}
{{- define "rlguard.otherContainers" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml -}}
({{ include "rlguard.isGuardPod" . }} ? object.spec.?initContainers.orValue([]) + object.spec.containers.filter(c, c.name != '{{ $facts.guardContainer }}') : object.spec.?initContainers.orValue([]).filter(c, c.name != '{{ $facts.guardContainer }}') + object.spec.containers)
{{- end }}

{{/* Variables about what the job of a pod, which is the parameter, lets the guard alone have. */}}
{{- define "rlguard.ofTheGuardAlone" }}
- name: support
  expression: "params.metadata.name + '-' + params.metadata.uid.substring(0, 8)"
- name: secrets
  expression: "[dyn(variables.support), params.spec.guard.heldout.volume.?secretName.orValue(variables.support)]"
- name: configMaps
  expression: "[dyn(variables.support), params.spec.guard.heldout.volume.?configMapName.orValue(variables.support)]"
{{- end }}

{{/* Whether the environment of a container `c` has nothing of that but what lets a trainer report. */}}
{{- define "rlguard.hasNoneOfIt" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml -}}
c.?env.orValue([]).all(e, !(e.?valueFrom.?configMapKeyRef.?name.orValue('') in variables.configMaps)
&& (!(e.?valueFrom.?secretKeyRef.?name.orValue('') in variables.secrets) || (e.valueFrom.secretKeyRef.name == variables.support
&& [e.name, e.valueFrom.secretKeyRef.key] in {{ include "rlguard.celPairs" $facts.sharedKeys }})))
&& c.?envFrom.orValue([]).all(e, !(e.?secretRef.?name.orValue('') in variables.secrets) && !(e.?configMapRef.?name.orValue('') in variables.configMaps))
{{- end }}

{{/* The beginning of a policy whose parameter is the job of a pod: of a new one, or as `of` says. */}}
{{- define "rlguard.podsOfAJob" }}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml }}
failurePolicy: Fail
paramKind: {apiVersion: rlguard.dev/v1alpha1, kind: GuardedTrainingJob}
matchConstraints:
  objectSelector:
    matchExpressions:
    - {key: {{ $facts.uidLabel }}, operator: Exists}
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [{{ .operation | default "CREATE" }}], resources: [{{ .resource | default "pods" }}]}
matchConditions:
- name: its-job
  expression: "params.metadata.uid == object.metadata.labels['{{ $facts.uidLabel }}']"
{{- end }}

{{/* The binding of a policy. With `jobs` it is evaluated with every job of the object's namespace. */}}
{{- define "rlguard.admissionBinding" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  {{- include "rlguard.metadata" .root | nindent 2 }}
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

{{/* A validation: no item `c` of a list may be as `where` says. The message names those that are. */}}
{{- define "rlguard.refuse" }}
- expression: {{ printf "!%s.exists(c, %s)" .of .where | quote }}
  messageExpression: {{ printf "'%s ' + %s.filter(c, %s).map(c, c.name).join(', ') + ': %s'" .what .of .where .message | quote }}
  reason: Forbidden
{{- end }}

{{/* Validations of variables.others: every container that is to be checked but the guard. */}}
{{- define "rlguard.admissionContainers" }}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml }}
{{- $of := dict "of" "variables.others" "what" "container" }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.name.startsWith('%s')" $facts.reservedPrefix)
  "message" (printf "names that start with %s are the operator\\'s" $facts.reservedPrefix)) $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?volumeMounts.orValue([]).exists(m, m.name.startsWith('%[1]s')) || c.?volumeDevices.orValue([]).exists(d, d.name.startsWith('%[1]s')) || c.?env.orValue([]).exists(e, e.?valueFrom.?fileKeyRef.?volumeName.orValue('').startsWith('%[1]s'))" $facts.reservedPrefix)
  "message" "must not mount the guard\\'s volumes") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" "c.?securityContext.?privileged.orValue(false)"
  "message" "must not be privileged: it could read every volume") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?securityContext.?capabilities.?add.orValue([]).exists(n, n.upperAscii().replace('CAP_', '', 1) in [%s])" (include "rlguard.celStrings" $facts.hostCapabilities))
  "message" "must not add a capability that opens the host") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "!variables.apart && c.?securityContext.?runAsUser.orValue(variables.podUser) == %s" $facts.guardUser)
  "message" (printf "must not run as user %s: that is the guard\\'s" $facts.guardUser)) $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?env.orValue([]).exists(e, (e.?valueFrom.?secretKeyRef.?name.orValue('') in variables.guardSecrets && !([e.name, e.?valueFrom.?secretKeyRef.?key.orValue('')] in %s)) || e.?valueFrom.?configMapKeyRef.?name.orValue('') in variables.guardConfigMaps) || c.?envFrom.orValue([]).exists(e, e.?secretRef.?name.orValue('') in variables.guardSecrets || e.?configMapRef.?name.orValue('') in variables.guardConfigMaps)" (include "rlguard.celPairs" $facts.sharedKeys))
  "message" "must not have in its environment what only the guard may have: held-out data, tokens, policy, the evaluator\\'s API key") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?securityContext.orValue({}).exists(k, k in [%s])" (include "rlguard.celStrings" (without $facts.refused.security "privileged")))
  "message" "has a security context that is refused") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "[%s].exists(n, c.?env.orValue([]).filter(e, e.name == n).size() > 1)" (include "rlguard.celStrings" $facts.trainerEnv))
  "message" (printf "must not set %s: the operator does" (join " or " $facts.trainerEnv))) $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" ("c.?ports.orValue([]).exists(p, variables.guardPorts.exists(g, string(p.containerPort) in g))")
  "message" "must not use the guard\\'s port") $of) }}
{{- end }}

{{/* Name of the replicatedJob with rank 0, of the JobSet whose spec stands at this place in CEL. */}}
{{- define "rlguard.rank0OfJobSet" -}}
(has({{ . }}.coordinator) ? {{ . }}.coordinator.replicatedJob : {{ . }}.replicatedJobs.size() == 1 ? {{ . }}.replicatedJobs[0].name : 'trainer')
{{- end }}

{{/* A map of strings as a list of pairs in CEL. */}}
{{- define "rlguard.celPairs" -}}
[{{- range $i, $name := keys . | sortAlpha }}{{ if $i }}, {{ end }}['{{ $name }}', '{{ get $ $name }}']{{ end -}}]
{{- end }}

{{/* A list of strings as it stands in CEL. */}}
{{- define "rlguard.celStrings" -}}
{{- range $i, $text := . }}{{ if $i }}, {{ end }}'{{ $text }}'{{ end -}}
{{- end }}
