{{- define "rlnode.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters: pods, Jobs and hooks append to it, and labels end at 63. */ -}}
{{- define "rlnode.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "rlnode.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rlnode.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rlnode.selector" -}}
app.kubernetes.io/name: {{ include "rlnode.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Nodes, apart from the Job and the test pod, which have the same name and instance. */ -}}
{{- define "rlnode.nodes" -}}
{{ include "rlnode.selector" . }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "rlnode.labels" -}}
{{ include "rlnode.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "rlnode.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "rlnode.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rlnode.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "rlnode.clusterSecret" -}}
{{- default (printf "%s-cluster" (include "rlnode.fullname" .)) .Values.clusterSecret.existingSecret -}}
{{- end -}}

{{- define "rlnode.tokens" -}}
{{- default (printf "%s-tokens" (include "rlnode.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "rlnode.tls" -}}
{{- default (printf "%s-tls" (include "rlnode.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{- define "rlnode.rules" -}}
{{- if .Values.existingRulesConfigMap -}}
{{- .Values.existingRulesConfigMap -}}
{{- else if .Values.rules -}}
{{- printf "%s-rules" (include "rlnode.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "rlnode.scheme" -}}
{{- ternary "https" "http" .Values.tls.enabled -}}
{{- end -}}

{{- /* More than half of the nodes, and no even number. */ -}}
{{- define "rlnode.bootstrapExpect" -}}
{{- $n := int .Values.replicaCount -}}
{{- if not .Values.bootstrapExpect -}}
{{- if le $n 1 -}}1
{{- else if eq $n 2 -}}
{{- fail "replicaCount: two nodes can't found a cluster that survives the loss of one; take 1, 3 or more, or set bootstrapExpect if the cluster exists" -}}
{{- else if le $n 5 -}}3
{{- else if le $n 9 -}}5
{{- else -}}
{{- fail "replicaCount: a cluster begins with nine nodes at most; install it so and scale up then, with bootstrapExpect: 5" -}}
{{- end -}}
{{- else -}}
{{- int .Values.bootstrapExpect -}}
{{- end -}}
{{- end -}}

{{- /* What commands of the Job and the test need to be let in; a dict of root and token: the key in the Secret. */ -}}
{{- define "rlnode.clientEnv" -}}
{{- if .root.Values.auth.enabled }}
- name: {{ ternary "RLNODE_ADMIN_TOKEN" "RLNODE_API_TOKEN" (eq .token "admin-token") }}
  valueFrom:
    secretKeyRef: {name: {{ include "rlnode.tokens" .root }}, key: {{ .token }}}
{{- end }}
{{- if and .root.Values.tls.enabled .root.Values.tls.caKey }}
- name: RLNODE_CA
  value: /tls/{{ .root.Values.tls.caKey }}
{{- end }}
{{- end -}}
