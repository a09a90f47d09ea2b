{{/*
Parts of the pod: what is mounted where, and how it is asked for its health.
*/}}

{{/* Whether the chart makes a Secret: "true" or nothing. */}}
{{- define "tidegate.ownSecret" -}}
{{- if or .Values.redis.auth.password .Values.keyPepper.value .Values.adminToken.value -}}true{{- end -}}
{{- end -}}

{{/*
The secrets that are mounted, as a list of {secret, key, path, variable}: each is a file in /etc/tidegate/secrets, which
changes when the Secret does.
*/}}
{{- define "tidegate.secrets" -}}
{{- $own := include "tidegate.fullname" . -}}
{{- $found := list -}}
{{- $redis := .Values.redis.auth -}}
{{- if and (include "tidegate.shared" .) (or $redis.password $redis.existingSecret) -}}
{{- $key := ternary $redis.passwordKey "redis-password" (not (empty $redis.existingSecret)) -}}
{{- $found = append $found (dict "secret" ($redis.existingSecret | default $own) "key" $key "path" "redis-password" "variable" "TIDEGATE_REDIS_PASSWORD_FILE") -}}
{{- with $redis.sentinelPasswordKey -}}
{{- $found = append $found (dict "secret" $redis.existingSecret "key" . "path" "sentinel-password" "variable" "TIDEGATE_REDIS_SENTINEL_PASSWORD_FILE") -}}
{{- end -}}
{{- end -}}
{{- with .Values.keyPepper -}}
{{- if or .value .existingSecret -}}
{{- $key := ternary .key "key-pepper" (not (empty .existingSecret)) -}}
{{- $found = append $found (dict "secret" (.existingSecret | default $own) "key" $key "path" "key-pepper" "variable" "TIDEGATE_KEY_PEPPER_FILE") -}}
{{- end -}}
{{- if .previousKey -}}
{{- $found = append $found (dict "secret" .existingSecret "key" .previousKey "path" "key-pepper-previous" "variable" "TIDEGATE_KEY_PEPPER_PREVIOUS_FILE") -}}
{{- end -}}
{{- end -}}
{{- with .Values.adminToken -}}
{{- if or .value .existingSecret -}}
{{- $key := ternary .key "admin-token" (not (empty .existingSecret)) -}}
{{- $found = append $found (dict "secret" (.existingSecret | default $own) "key" $key "path" "admin-token" "variable" "TIDEGATE_ADMIN_TOKEN_FILE") -}}
{{- end -}}
{{- end -}}
{{- with .Values.jwt.hmac -}}
{{- if .existingSecret -}}
{{- $found = append $found (dict "secret" .existingSecret "key" .key "path" .key "variable" "") -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "tidegate.volumes" -}}
- name: config
  configMap:
    name: {{ include "tidegate.fullname" . }}
{{- with include "tidegate.secrets" . | fromYamlArray }}
- name: secrets
  projected:
    defaultMode: 288 # 0440
    sources:
    {{- range . }}
    - secret:
        name: {{ .secret }}
        items:
        - key: {{ .key }}
          path: {{ .path }}
    {{- end }}
{{- end }}
{{- if .Values.redis.tls.existingSecret }}
- name: redis-tls
  secret:
    secretName: {{ .Values.redis.tls.existingSecret }}
    defaultMode: 288 # 0440
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 288 # 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Directories, not files by subPath, which would never change. */}}
{{- define "tidegate.volumeMounts" -}}
- name: config
  mountPath: /etc/tidegate/config
  readOnly: true
{{- if include "tidegate.secrets" . | fromYamlArray }}
- name: secrets
  mountPath: /etc/tidegate/secrets
  readOnly: true
{{- end }}
{{- if .Values.redis.tls.existingSecret }}
- name: redis-tls
  mountPath: /etc/tidegate/redis-tls
  readOnly: true
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /etc/tidegate/tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tidegate.env" -}}
- name: TIDEGATE_REPLICA
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- range include "tidegate.secrets" . | fromYamlArray }}
{{- if .variable }}
- name: {{ .variable }}
  value: /etc/tidegate/secrets/{{ .path }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
(list $ SERVICE PATH): how the kubelet asks. It cannot ask for health over gRPC with TLS, so it then asks the admin port,
which tells the same.
*/}}
{{- define "tidegate.probe" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.tls.enabled -}}
httpGet: {path: {{ index . 2 }}, port: http-admin, scheme: {{ ternary "HTTPS" "HTTP" $root.Values.tls.admin }}}
{{- else -}}
grpc: {port: 50051, service: {{ index . 1 }}}
{{- end -}}
{{- end -}}

{{- define "tidegate.affinity" -}}
{{- if .Values.affinity -}}
{{- toYaml .Values.affinity -}}
{{- else if ne .Values.podAntiAffinity "none" -}}
podAntiAffinity:
  {{- if eq .Values.podAntiAffinity "hard" }}
  requiredDuringSchedulingIgnoredDuringExecution:
  - topologyKey: kubernetes.io/hostname
    labelSelector:
      matchLabels:
        {{- include "tidegate.selector" (list . "limiter") | nindent 8 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "tidegate.selector" (list . "limiter") | nindent 10 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "tidegate.topologySpread" -}}
{{- $ours := dict "matchLabels" (include "tidegate.selector" (list . "limiter") | fromYaml) -}}
{{- $found := list -}}
{{- range .Values.topologySpreadConstraints -}}
{{- $found = append $found (mustMerge (deepCopy .) (ternary dict (dict "labelSelector" $ours) (hasKey . "labelSelector"))) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
