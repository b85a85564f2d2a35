{{/* Names and labels. Whoever needs a name asks here: no two places spell one. */}}

{{- define "pandal.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride -}}
{{- end -}}

{{/* (list $ "part"): the release's name and a part's, in 63 characters, and unlike any other's. */}}
{{- define "pandal.name" -}}
{{- $whole := printf "%s-%s" (include "pandal.fullname" (index . 0)) (index . 1) -}}
{{- if le (len $whole) 63 -}}{{ $whole }}{{- else -}}
{{ $whole | trunc 54 | trimSuffix "-" }}-{{ $whole | sha256sum | trunc 8 }}
{{- end -}}
{{- end -}}

{{/* (list $ "component"): what selectors select by; never changes while a release lives. */}}
{{- define "pandal.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* (list $ "component"): of a pod. Without versions: what has not changed is not rolled. */}}
{{- define "pandal.podLabels" -}}
{{ include "pandal.selector" . }}
app.kubernetes.io/part-of: pandal
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "pandal.labels" -}}
{{- $ := index . 0 -}}
{{ include "pandal.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/part-of: pandal
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ "component" "name"): the metadata of an object of ours. */}}
{{- define "pandal.metadata" -}}
name: {{ include "pandal.name" (list (index . 0) (index . 2)) }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "pandal.labels" (list (index . 0) (index . 1)) | nindent 2 }}
{{- end -}}

{{/* (list $ image): where it is pulled from. */}}
{{- define "pandal.image" -}}
{{- $ := index . 0 -}}
{{- $image := index . 1 -}}
{{- $place := $image.repository -}}
{{- with $.Values.imageRegistry }}{{ $place = printf "%s/%s" . $place }}{{ end -}}
{{- if $image.digest -}}
{{ $place }}@{{ $image.digest }}
{{- else -}}
{{ $place }}:{{ default $.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* (list $ "component" serviceAccount): the name of the account. */}}
{{- define "pandal.account" -}}
{{- $made := include "pandal.name" (list (index . 0) (index . 1)) -}}
{{- default (ternary $made "default" (index . 2).create) (index . 2).name -}}
{{- end -}}

{{/* (list $ "component" serviceAccount): the account, if it is to be made. */}}
{{- define "pandal.accountObject" -}}
{{- $account := index . 2 -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "pandal.account" . }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels:
    {{- include "pandal.labels" (list (index . 0) (index . 1)) | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{/* (list $ "component" serviceAccount rules): what the account may do in the namespace. */}}
{{- define "pandal.role" -}}
{{- $ := index . 0 -}}
{{- $component := index . 1 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "pandal.metadata" (list $ $component $component) | nindent 2 }}
rules:
  {{- index . 3 | toYaml | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "pandal.metadata" (list $ $component $component) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "pandal.name" (list $ $component) }}
subjects:
  - kind: ServiceAccount
    name: {{ include "pandal.account" (list $ $component (index . 2)) }}
    namespace: {{ $.Release.Namespace }}
{{- end -}}
