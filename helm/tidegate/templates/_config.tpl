{{/*
tidegate's own configuration: what the chart decides, and over it what `config` says.
*/}}

{{/* Starts the names of this release's buckets: of its own, readable, and at most 64 bytes. */}}
{{- define "tidegate.keyPrefix" -}}
{{- $name := printf "%s:%s" (include "tidegate.namespace" .) (include "tidegate.fullname" .) -}}
{{- if gt (len $name) 60 -}}
{{- $name = printf "%s-%s" (trunc 40 $name) (sha256sum $name | trunc 16) -}}
{{- end -}}
{{- printf "rl:%s:" $name -}}
{{- end -}}

{{- define "tidegate.redis.urls" -}}
{{- if .Values.redis.embedded -}}
- {{ printf "redis://%s.%s.svc:6379/0" (include "tidegate.part" (list . "redis")) (include "tidegate.namespace" .) }}
{{- else -}}
{{- with .Values.redis.urls -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether replicas share their buckets: "true" or nothing. */}}
{{- define "tidegate.shared" -}}
{{- if or .Values.redis.embedded .Values.redis.urls -}}true{{- end -}}
{{- end -}}

{{- define "tidegate.redis" -}}
{{- $redis := dict "topology" .Values.redis.topology "urls" (include "tidegate.redis.urls" . | fromYamlArray) -}}
{{- with .Values.redis.sentinelMaster -}}{{- $_ := set $redis "sentinel_master" . -}}{{- end -}}
{{- with .Values.redis.username -}}{{- $_ := set $redis "username" . -}}{{- end -}}
{{- with .Values.redis.database -}}{{- $_ := set $redis "database" (int .) -}}{{- end -}}
{{- if .Values.redis.tls.existingSecret -}}
{{- $tls := dict -}}
{{- range $name, $key := dict "ca_file" .Values.redis.tls.caKey "cert_file" .Values.redis.tls.certKey "key_file" .Values.redis.tls.keyKey -}}
{{- with $key -}}{{- $_ := set $tls $name (printf "/etc/tidegate/redis-tls/%s" .) -}}{{- end -}}
{{- end -}}
{{- $_ := set $redis "tls" $tls -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite (deepCopy (.Values.redis.settings | default dict)) $redis) -}}
{{- end -}}

{{- define "tidegate.tls" -}}
{{- $tls := dict "cert" (printf "/etc/tidegate/tls/%s" .Values.tls.certKey) "key" (printf "/etc/tidegate/tls/%s" .Values.tls.keyKey) -}}
{{- with .Values.tls.clientCaKey -}}{{- $_ := set $tls "client_ca" (printf "/etc/tidegate/tls/%s" .) -}}{{- end -}}
{{- with .Values.tls.clientSpiffeIds -}}{{- $_ := set $tls "client_spiffe_ids" . -}}{{- end -}}
{{- toYaml $tls -}}
{{- end -}}

{{/* The whole of it, as YAML. */}}
{{- define "tidegate.config" -}}
{{- $generated := dict "key_prefix" (include "tidegate.keyPrefix" .) "log" (dict "format" "json") -}}
{{- $config := mustMergeOverwrite $generated (deepCopy (.Values.config | default dict)) -}}
{{- $_ := set $config "listen" "0.0.0.0:50051" -}}
{{- $admin := dict "listen" "0.0.0.0:8080" -}}
{{- if include "tidegate.shared" . -}}
{{- $_ := set $config "redis" (include "tidegate.redis" . | fromYaml) -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $config "tls" (include "tidegate.tls" . | fromYaml) -}}
{{- if .Values.tls.admin -}}
{{- $_ := set $admin "tls" (pick $config.tls "cert" "key") -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{- with $config.identity -}}
{{- with .jwt -}}
{{- if $.Values.jwt.jwks -}}{{- $_ := set . "jwks_file" "/etc/tidegate/config/jwks.json" -}}{{- end -}}
{{- if $.Values.jwt.hmac.existingSecret -}}
{{- $_ := set . "secret_file" (printf "/etc/tidegate/secrets/%s" $.Values.jwt.hmac.key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
What of it a running process does not follow. Whoever adds a key to tidegate that is followed adds it here; else a change
of it rolls the pods, which is never wrong. tests/chart holds this to src/config/changes.rs.
*/}}
{{- define "tidegate.config.fixed" -}}
{{- $config := include "tidegate.config" . | fromYaml -}}
{{- $fixed := omit $config "default_tier" "allow_generous_default" "tiers" "identity" "api_keys" "users" "rules" "headers" "error_answer" "strip_api_key" "suspended_answer" "on_store_error" "replicas_hint" "mode" -}}
{{- $_ := set $fixed "log" (omit $fixed.log "filter") -}}
{{- with $fixed.redis -}}
{{- $_ := set $fixed "redis" (omit . "username" "tls") -}}
{{- end -}}
{{- toYaml $fixed -}}
{{- end -}}

{{/* (list TEXT PATH): a time such as 1m 30s in whole seconds, rounded up. */}}
{{- define "tidegate.seconds" -}}
{{- $text := index . 0 | toString -}}
{{- $unit := dict "ms" 1 "msec" 1 "millis" 1 "s" 1000 "sec" 1000 "secs" 1000 "second" 1000 "seconds" 1000 "m" 60000 "min" 60000 "mins" 60000 "minute" 60000 "minutes" 60000 "h" 3600000 "hr" 3600000 "hour" 3600000 "hours" 3600000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+ *[a-zµ]+" $text -1 -}}
{{- $name := regexFind "[a-zµ]+" . -}}
{{- if not (hasKey $unit $name) -}}{{- fail (printf "%s: cannot tell how long %q is: write ms, s, m or h" (index $ 1) $text) -}}{{- end -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | atoi) (get $unit $name)) -}}
{{- end -}}
{{- div (add $sum 999) 1000 -}}
{{- end -}}

{{/* Seconds that a pod needs to end without losing a call. */}}
{{- define "tidegate.graceNeeded" -}}
{{- $config := .Values.config | default dict -}}
{{- $drain := include "tidegate.seconds" (list ($config.drain | default "5s") "config.drain") -}}
{{- $shutdown := include "tidegate.seconds" (list ($config.shutdown | default "10s") "config.shutdown") -}}
{{- add $drain $shutdown .Values.preStopSleepSeconds 5 -}}
{{- end -}}
