{{/* Whom stores of rediss:// URLs are known by, and who we are to them. */}}

{{/* (list $ "PREFIX_"): lines of their settings, or nothing. */}}
{{- define "pandal.redis.variables" -}}
{{- $gateway := (index . 0).Values.gateway -}}
{{- if $gateway.redisCa.existingSecret }}
{{ index . 1 }}REDIS_CA_FILE: /etc/pandal/redis/ca.crt
{{- end }}
{{- if $gateway.redisCertificateSecret }}
{{ index . 1 }}REDIS_CERTIFICATE_FILE: /etc/pandal/redis/tls.crt
{{ index . 1 }}REDIS_CERTIFICATE_KEY_FILE: /etc/pandal/redis/tls.key
{{- end }}
{{- end -}}

{{/* Secrets that are read, as a JSON list; a change of one rolls who reads them. */}}
{{- define "pandal.redis.secrets" -}}
{{- toJson (compact (list .Values.gateway.redisCa.existingSecret .Values.gateway.redisCertificateSecret)) -}}
{{- end -}}

{{- define "pandal.redis.mount" -}}
{{- if include "pandal.redis.secrets" . | fromJsonArray -}}
- name: redis
  mountPath: /etc/pandal/redis
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "pandal.redis.volume" -}}
{{- $gateway := .Values.gateway -}}
{{- if include "pandal.redis.secrets" . | fromJsonArray -}}
- name: redis
  projected:
    defaultMode: 0440
    sources:
      {{- with $gateway.redisCa }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items:
            - key: {{ .key }}
              path: ca.crt
      {{- end }}
      {{- end }}
      {{- with $gateway.redisCertificateSecret }}
      - secret:
          name: {{ . }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- end }}
{{- end -}}
{{- end -}}
