{{/* Whom stores of rediss:// URLs are known by. */}}

{{/* (list $ "PREFIX_"): a line of their settings, or nothing. */}}
{{- define "pandal.redis.variable" -}}
{{- if (index . 0).Values.gateway.redisCa.existingSecret }}
{{ index . 1 }}REDIS_CA_FILE: /etc/pandal/redis/ca.crt
{{- end }}
{{- end -}}

{{- define "pandal.redis.mount" -}}
{{- if .Values.gateway.redisCa.existingSecret -}}
- name: redis
  mountPath: /etc/pandal/redis
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "pandal.redis.volume" -}}
{{- with .Values.gateway.redisCa -}}
{{- if .existingSecret -}}
- name: redis
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: ca.crt
{{- end -}}
{{- end -}}
{{- end -}}
