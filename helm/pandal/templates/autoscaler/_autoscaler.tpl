{{/* Installed where a pool asks for it. */}}
{{- define "pandal.autoscaler.isInstalled" -}}
{{- $asked := false -}}
{{- range .Values.pools -}}
{{- if dig "autoscaling" "enabled" $.Values.poolDefaults.autoscaling.enabled . }}{{ $asked = true }}{{ end -}}
{{- end -}}
{{- if and .Values.autoscaler.enabled $asked }}yes{{ end -}}
{{- end -}}

{{- define "pandal.autoscaler.variables" -}}
AUTOSCALER_NAMESPACE: {{ .Release.Namespace }}
AUTOSCALER_LEASE_NAME: {{ include "pandal.name" (list . "autoscaler") }}
AUTOSCALER_HOST: "0.0.0.0"
AUTOSCALER_PORT: {{ .Values.autoscaler.port | quote }}
{{- include "pandal.settings" (list "AUTOSCALER_" .Values.autoscaler.settings) }}
{{- end -}}
