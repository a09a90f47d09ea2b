{{/*
Names and labels. A name that would be longer than Kubernetes takes is cut, with a digest of what it was at its end, so
that two long names do not become one.
*/}}

{{/* (list NAME MAX): NAME, cut to MAX characters. */}}
{{- define "tidegate.cut" -}}
{{- $name := index . 0 -}}
{{- $max := index . 1 | int -}}
{{- if gt (len $name) $max -}}
{{- printf "%s-%s" (trunc (sub $max 9 | int) $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.name" -}}
{{- include "tidegate.cut" (list (.Values.nameOverride | default .Chart.Name) 63) -}}
{{- end -}}

{{/* What the release is called before anything is cut. */}}
{{- define "tidegate.fullname.whole" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.fullname" -}}
{{- include "tidegate.cut" (list (include "tidegate.fullname.whole" .) 63) -}}
{{- end -}}

{{/* (list $ SUFFIX): the name of a part of the release. 52, since the labels of a StatefulSet's pods add eleven. */}}
{{- define "tidegate.part" -}}
{{- $suffix := printf "-%s" (index . 1) -}}
{{- $max := sub 52 (len $suffix) -}}
{{- printf "%s%s" (include "tidegate.cut" (list (include "tidegate.fullname.whole" (index . 0)) $max)) $suffix -}}
{{- end -}}

{{- define "tidegate.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "tidegate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tidegate.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* (list $ COMPONENT): the labels that choose the pods of a component. They never change. */}}
{{- define "tidegate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tidegate.name" $root }}
app.kubernetes.io/instance: {{ include "tidegate.cut" (list $root.Release.Name 63) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* (list $ COMPONENT [MORE]): the labels of a resource. */}}
{{- define "tidegate.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/version" ($root.Chart.AppVersion | replace "+" "_" | trunc 63)
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "tidegate" -}}
{{- $more := dict -}}
{{- if gt (len .) 2 -}}{{- $more = index . 2 | default dict -}}{{- end -}}
{{- $own := include "tidegate.selector" (list $root (index . 1)) | fromYaml -}}
{{- toYaml (mustMergeOverwrite $labels (deepCopy ($root.Values.commonLabels | default dict)) (deepCopy $more) $own) -}}
{{- end -}}

{{/*
(list $ NAME COMPONENT [LABELS ANNOTATIONS NAMESPACE]): the metadata of a resource.
*/}}
{{- define "tidegate.metadata" -}}
{{- $root := index . 0 -}}
{{- $labels := dict -}}
{{- $annotations := deepCopy ($root.Values.commonAnnotations | default dict) -}}
{{- $namespace := include "tidegate.namespace" $root -}}
{{- if gt (len .) 3 -}}{{- $labels = index . 3 | default dict -}}{{- end -}}
{{- if gt (len .) 4 -}}{{- $annotations = mustMergeOverwrite $annotations (deepCopy (index . 4 | default dict)) -}}{{- end -}}
{{- if gt (len .) 5 -}}{{- $namespace = index . 5 | default $namespace -}}{{- end -}}
name: {{ index . 1 }}
namespace: {{ $namespace }}
labels:
  {{- include "tidegate.labels" (list $root (index . 2) $labels) | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (list IMAGE TAG): what is pulled. */}}
{{- define "tidegate.image" -}}
{{- $image := index . 0 -}}
{{- $tag := $image.tag | default (index . 1) -}}
{{- $name := $image.repository -}}
{{- with $image.registry -}}{{- $name = printf "%s/%s" . $name -}}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s:%s@%s" $name $tag $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name $tag -}}
{{- end -}}
{{- end -}}

{{/* The name of the Service as others in the cluster know it. */}}
{{- define "tidegate.host" -}}
{{- printf "%s.%s.svc" (include "tidegate.fullname" .) (include "tidegate.namespace" .) -}}
{{- end -}}
