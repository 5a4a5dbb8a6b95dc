{{/* Names begin with emq: the alerts look for jobs that do. */}}
{{- define "emq.name" -}}
{{- if hasPrefix "emq" .Release.Name }}{{ .Release.Name | trunc 40 }}{{ else }}emq-{{ .Release.Name | trunc 36 }}{{ end }}
{{- end }}

{{- define "emq.selector" -}}
app.kubernetes.io/name: emq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "emq.labels" -}}
{{ include "emq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What every pod is: rootless, without a token of the cluster, on a read-only file system. */}}
{{- define "emq.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: tmp
    emptyDir: {}
  {{- if .Values.trail.enabled }}
  - name: trail
    persistentVolumeClaim: {claimName: {{ include "emq.name" . }}-trail}
  {{- end }}
  {{- with .Values.certificatesSecretName }}
  - name: certificates
    secret: {secretName: {{ . | quote }}}
  {{- end }}
{{- end }}

{{/* Ends with the list `env`, so that a template adds its own variables below it. */}}
{{- define "emq.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.trail.enabled }}
  - {name: trail, mountPath: /var/lib/emq}
  {{- end }}
  {{- if .Values.certificatesSecretName }}
  - {name: certificates, mountPath: /etc/emq/certificates, readOnly: true}
  {{- end }}
envFrom:
  - secretRef: {name: {{ .Values.secretName | quote }}}
env:
  - {name: EMQ_ENVIRONMENT, value: {{ .Values.environment | quote }}}
  - {name: EMQ_DRAIN_S, value: {{ .Values.drainSeconds | quote }}}
  {{- if .Values.trail.enabled }}
  - {name: EMQ_TRAIL, value: /var/lib/emq/trail}
  {{- end }}
  {{- range $name, $value := .Values.settings }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
{{- end }}

{{/* /livez fails if a restart would help; a process that waits for its servers lives. */}}
{{- define "emq.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
