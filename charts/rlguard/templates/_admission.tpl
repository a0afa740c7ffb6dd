{{/*
Variables that both admission policies share. Constants come from files/isolation.yaml, which is generated from
the operator's own refusals, so that the two cannot drift apart.
*/}}
{{- define "rlguard.admissionVariables" -}}
{{- $facts := .Files.Get "files/isolation.yaml" | fromYaml }}
- name: volumes
  expression: "object.spec.?volumes.orValue([])"
- name: guards
  expression: "object.spec.?initContainers.orValue([]).filter(c, c.name == '{{ $facts.guardContainer }}')"
- name: guardPorts
  expression: >-
    variables.guards.map(c, c.?env.orValue([]).filter(e, e.name in ['RLGUARD_GUARD_PORT', 'RLGUARD_GUARD_METRICS_PORT']).map(e, e.?value.orValue('')))
- name: heldout
  expression: "variables.volumes.filter(v, v.name == '{{ $facts.heldoutVolume }}')"
- name: guardClaims
  expression: "variables.volumes.filter(v, v.name.startsWith('{{ $facts.reservedPrefix }}') && has(v.persistentVolumeClaim)).map(v, v.persistentVolumeClaim.claimName)"
- name: heldoutSecrets
  expression: "variables.heldout.filter(v, has(v.secret)).map(v, v.secret.?secretName.orValue(''))"
- name: heldoutConfigMaps
  expression: "variables.heldout.filter(v, has(v.configMap)).map(v, v.configMap.?name.orValue(''))"
- name: podUser
  expression: "object.spec.?securityContext.?runAsUser.orValue(-1)"
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
  "where" (printf "c.?volumeMounts.orValue([]).exists(m, m.name.startsWith('%s'))" $facts.reservedPrefix)
  "message" "must not mount the guard\\'s volumes") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" "c.?securityContext.?privileged.orValue(false)"
  "message" "must not be privileged: it could read every volume") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?securityContext.?capabilities.?add.orValue([]).exists(n, n.upperAscii().replace('CAP_', '', 1) in [%s])" (include "rlguard.celStrings" $facts.hostCapabilities))
  "message" "must not add a capability that opens the host") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?securityContext.?runAsUser.orValue(variables.podUser) == %s" $facts.guardUser)
  "message" (printf "must not run as user %s: that is the guard\\'s" $facts.guardUser)) $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" "c.?env.orValue([]).exists(e, e.?valueFrom.?secretKeyRef.?name.orValue('') in variables.heldoutSecrets || e.?valueFrom.?configMapKeyRef.?name.orValue('') in variables.heldoutConfigMaps) || c.?envFrom.orValue([]).exists(e, e.?secretRef.?name.orValue('') in variables.heldoutSecrets || e.?configMapRef.?name.orValue('') in variables.heldoutConfigMaps)"
  "message" "must not refer to the held-out data in its environment") $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "[%s].exists(n, c.?env.orValue([]).filter(e, e.name == n).size() > 1)" (include "rlguard.celStrings" $facts.trainerEnv))
  "message" (printf "must not set %s: the operator does" (join " or " $facts.trainerEnv))) $of) }}
{{- include "rlguard.refuse" (merge (dict
  "where" (printf "c.?ports.orValue([]).exists(p, p.?name.orValue('') == '%s' || variables.guardPorts.exists(g, string(p.containerPort) in g))" $facts.metricsPort)
  "message" "must not use a port of the guard\\'s, nor its name") $of) }}
{{- end }}

{{/* A list of strings as it stands in CEL. */}}
{{- define "rlguard.celStrings" -}}
{{- range $i, $text := . }}{{ if $i }}, {{ end }}'{{ $text }}'{{ end -}}
{{- end }}
