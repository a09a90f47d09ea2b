{{/*
What values.schema.json cannot say, as it is about several values: all faults at once, each with its remedy.
*/}}

{{- define "tidegate.validate" -}}
{{- $faults := list -}}
{{- $redis := .Values.redis -}}
{{- $replicas := .Values.replicaCount | int -}}
{{- $what := "replicaCount" -}}
{{- if .Values.autoscaling.enabled -}}
{{- $replicas = .Values.autoscaling.maxReplicas | int -}}
{{- $what = "autoscaling.maxReplicas" -}}
{{- if gt (.Values.autoscaling.minReplicas | int) $replicas -}}
{{- $faults = append $faults "autoscaling.minReplicas: is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- $resources := .Values.resources | default dict -}}
{{- $requests := $resources.requests | default dict -}}
{{- if and .Values.autoscaling.targetCPUUtilizationPercentage (not $requests.cpu) -}}
{{- $faults = append $faults "autoscaling.targetCPUUtilizationPercentage: is a share of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- if not (or .Values.autoscaling.targetCPUUtilizationPercentage .Values.autoscaling.targetMemoryUtilizationPercentage .Values.autoscaling.metrics) -}}
{{- $faults = append $faults "autoscaling: there is nothing to scale by; set targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- end -}}
{{- if and (gt $replicas 1) (not (include "tidegate.shared" .)) -}}
{{- $faults = append $faults (printf "%s: %d replicas without Redis would each have limits of their own; set redis.urls (or redis.embedded: true for a trial), or keep to one" $what $replicas) -}}
{{- end -}}
{{- if $redis.embedded -}}
{{- if $redis.urls -}}
{{- $faults = append $faults "redis.urls: is set together with redis.embedded; keep one" -}}
{{- end -}}
{{- if ne $redis.topology "standalone" -}}
{{- $faults = append $faults (printf "redis.topology: is %s, but redis.embedded is a single Redis" $redis.topology) -}}
{{- end -}}
{{- if or $redis.username $redis.tls.existingSecret $redis.database -}}
{{- $faults = append $faults "redis.embedded: has neither users, nor TLS, nor another database; leave redis.username, redis.tls and redis.database out" -}}
{{- end -}}
{{- else if $redis.urls -}}
{{- if and (eq $redis.topology "standalone") (ne (len $redis.urls) 1) -}}
{{- $faults = append $faults (printf "redis.urls: a standalone Redis has one address, not %d" (len $redis.urls)) -}}
{{- end -}}
{{- if and (eq $redis.topology "sentinel") (not $redis.sentinelMaster) -}}
{{- $faults = append $faults "redis.sentinelMaster: is missing; it is the name under which the sentinels monitor the master" -}}
{{- end -}}
{{- if and (ne $redis.topology "sentinel") $redis.sentinelMaster -}}
{{- $faults = append $faults (printf "redis.sentinelMaster: is set, but redis.topology is %s" $redis.topology) -}}
{{- end -}}
{{- if and (eq $redis.topology "cluster") $redis.database -}}
{{- $faults = append $faults "redis.database: a cluster has only database 0" -}}
{{- end -}}
{{- $plain := 0 -}}
{{- range $redis.urls -}}{{- if not (hasPrefix "rediss://" .) -}}{{- $plain = add $plain 1 -}}{{- end -}}{{- end -}}
{{- if and $redis.tls.existingSecret $plain -}}
{{- $faults = append $faults "redis.tls.existingSecret: needs addresses that start with rediss:// in redis.urls" -}}
{{- end -}}
{{- if and $plain (lt ($plain | int) (len $redis.urls)) -}}
{{- $faults = append $faults "redis.urls: all addresses start with redis://, or all with rediss://" -}}
{{- end -}}
{{- else -}}
{{- if or $redis.auth.password $redis.auth.existingSecret $redis.tls.existingSecret $redis.sentinelMaster $redis.username (ne $redis.topology "standalone") -}}
{{- $faults = append $faults "redis.urls: is missing; other keys of redis say how to reach one" -}}
{{- end -}}
{{- end -}}
{{- if not (eq (empty $redis.tls.certKey) (empty $redis.tls.keyKey)) -}}
{{- $faults = append $faults "redis.tls.certKey and redis.tls.keyKey: one needs the other" -}}
{{- end -}}
{{- if and $redis.auth.password $redis.auth.existingSecret -}}
{{- $faults = append $faults "redis.auth.password: is set together with redis.auth.existingSecret; keep one" -}}
{{- end -}}
{{- if and $redis.auth.sentinelPasswordKey (not $redis.auth.existingSecret) -}}
{{- $faults = append $faults "redis.auth.sentinelPasswordKey: is a key of redis.auth.existingSecret, which is not set" -}}
{{- end -}}
{{- range $name := list "keyPepper" "adminToken" -}}
{{- $secret := get $.Values $name -}}
{{- if and $secret.value $secret.existingSecret -}}
{{- $faults = append $faults (printf "%s.value: is set together with %s.existingSecret; keep one" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.keyPepper.previousKey (not .Values.keyPepper.existingSecret) -}}
{{- $faults = append $faults "keyPepper.previousKey: is a key of keyPepper.existingSecret, which is not set" -}}
{{- end -}}
{{- $identity := (.Values.config | default dict).identity | default dict -}}
{{- if and (or .Values.jwt.jwks .Values.jwt.hmac.existingSecret) (not $identity.jwt) -}}
{{- $faults = append $faults "jwt: has keys, but config.identity.jwt does not ask for tokens" -}}
{{- end -}}
{{- if and .Values.jwt.jwks .Values.jwt.hmac.existingSecret -}}
{{- $faults = append $faults "jwt.jwks: is set together with jwt.hmac.existingSecret; keep one" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) -}}
{{- $faults = append $faults "tls.existingSecret: is missing; it holds certificate and key" -}}
{{- end -}}
{{- if and .Values.tls.clientSpiffeIds (not .Values.tls.clientCaKey) -}}
{{- $faults = append $faults "tls.clientSpiffeIds: needs tls.clientCaKey, the CA that clients' certificates lead to" -}}
{{- end -}}
{{- if and .Values.tls.enabled .Values.tls.clientCaKey .Values.test.enabled (not .Values.test.clientSecret) -}}
{{- $faults = append $faults "test.clientSecret: is missing; with tls.clientCaKey the pod of helm test needs a certificate (or set test.enabled: false)" -}}
{{- end -}}
{{- with .Values.terminationGracePeriodSeconds -}}
{{- $needed := include "tidegate.graceNeeded" $ | int -}}
{{- if lt (int .) $needed -}}
{{- $faults = append $faults (printf "terminationGracePeriodSeconds: %d is too short for preStopSleepSeconds, config.drain and config.shutdown; %d or more" (int .) $needed) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.minAvailable (kindIs "float64" .Values.podDisruptionBudget.minAvailable) (ge (.Values.podDisruptionBudget.minAvailable | int) (ternary (.Values.autoscaling.minReplicas | int) (.Values.replicaCount | int) .Values.autoscaling.enabled)) -}}
{{- $faults = append $faults "podDisruptionBudget.minAvailable: is as many as there are replicas, so no node could ever be drained" -}}
{{- end -}}
{{- if and .Values.preStopSleepSeconds (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $faults = append $faults (printf "preStopSleepSeconds: needs Kubernetes 1.30; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.service.trafficDistribution (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $faults = append $faults (printf "service.trafficDistribution: needs Kubernetes 1.31; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled -}}
{{- $faults = append $faults "monitoring: podMonitor and serviceMonitor together count everything twice; keep one" -}}
{{- end -}}
{{- range $name := list "authorizationPolicy" "envoyFilter" -}}
{{- $policy := get $.Values.istio $name -}}
{{- if $policy.enabled -}}
{{- if and (not $policy.selector) (not $policy.targetRefs) -}}
{{- $faults = append $faults (printf "istio.%s: without selector or targetRefs it would hit all workloads, tidegate's own included; name the gateways" $name) -}}
{{- end -}}
{{- if and $policy.selector $policy.targetRefs -}}
{{- $faults = append $faults (printf "istio.%s.selector: is set together with targetRefs; keep one" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.istio.envoyFilter.enabled .Values.tls.enabled -}}
{{- $faults = append $faults "istio.envoyFilter: does not speak TLS of tidegate's own; set tls.enabled: false, and istio.envoyFilter.meshTls: true to be encrypted" -}}
{{- end -}}
{{- if and .Values.envoyGateway.securityPolicy.enabled (not .Values.envoyGateway.securityPolicy.targetRefs) -}}
{{- $faults = append $faults "envoyGateway.securityPolicy.targetRefs: is missing; name the Gateway or the routes" -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n\nThese values do not fit together:\n- %s\n" (join "\n- " $faults)) -}}
{{- end -}}
{{- end -}}
