{{/* What Istio's mesh configuration calls this release. */}}
{{- define "tidegate.istio.provider" -}}
{{- .Values.istio.provider.name | default (printf "%s-%s" (include "tidegate.fullname" .) (include "tidegate.namespace" .)) -}}
{{- end -}}

{{/* POLICY: the workloads that it is for, each kind in its own words. */}}
{{- define "tidegate.istio.targets" -}}
{{- with .targetRefs -}}
targetRefs:
{{ toYaml . }}
{{- end -}}
{{- end -}}
