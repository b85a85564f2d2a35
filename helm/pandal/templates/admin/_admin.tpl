{{- define "pandal.admin.variables" -}}
ADMIN_HOST: "0.0.0.0"
ADMIN_PORT: {{ .Values.admin.port | quote }}
{{- include "pandal.redis.variables" (list . "ADMIN_") }}
{{- include "pandal.settings" (list "ADMIN_" .Values.admin.settings) }}
{{- end -}}
