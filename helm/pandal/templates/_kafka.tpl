{{/* How gateways and billing speak to Kafka, and who they are to it. */}}

{{/* (list $ "PREFIX_"): their settings. */}}
{{- define "pandal.kafka.variables" -}}
{{- $kafka := (index . 0).Values.usage.kafka -}}
{{- $prefix := printf "%sKAFKA_" (index . 1) -}}
{{ $prefix }}BOOTSTRAP: {{ $kafka.bootstrap | quote }}
{{ $prefix }}SECURITY: {{ $kafka.security }}
{{- if hasPrefix "sasl" $kafka.security }}
{{ $prefix }}SASL_MECHANISM: {{ $kafka.sasl.mechanism }}
{{- end }}
{{- if hasSuffix "ssl" $kafka.security }}
{{- if $kafka.tls.ca.existingSecret }}
{{ $prefix }}CA_FILE: /etc/pandal/kafka/ca.crt
{{- end }}
{{- if $kafka.tls.certificateSecret }}
{{ $prefix }}CERTIFICATE_FILE: /etc/pandal/kafka/tls.crt
{{ $prefix }}CERTIFICATE_KEY_FILE: /etc/pandal/kafka/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $ "PREFIX_"): variables from Secrets. */}}
{{- define "pandal.kafka.secretVariables" -}}
{{- $usage := (index . 0).Values.usage -}}
{{- if and (eq $usage.transport "kafka") (hasPrefix "sasl" $usage.kafka.security) -}}
{{ include "pandal.secretVariable" (list (printf "%sKAFKA_USERNAME" (index . 1)) $usage.kafka.sasl.username) }}
{{ include "pandal.secretVariable" (list (printf "%sKAFKA_PASSWORD" (index . 1)) $usage.kafka.sasl.password) }}
{{- end -}}
{{- end -}}

{{/* Secrets that are read, as a JSON list; a change of one rolls who reads them. */}}
{{- define "pandal.kafka.secrets" -}}
{{- $usage := .Values.usage -}}
{{- $found := list -}}
{{- if eq $usage.transport "kafka" -}}
{{- if hasPrefix "sasl" $usage.kafka.security }}{{ $found = list $usage.kafka.sasl.username.existingSecret $usage.kafka.sasl.password.existingSecret }}{{ end -}}
{{- if hasSuffix "ssl" $usage.kafka.security }}{{ $found = concat $found (list $usage.kafka.tls.ca.existingSecret $usage.kafka.tls.certificateSecret) }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Whether there are certificates to be mounted. */}}
{{- define "pandal.kafka.hasFiles" -}}
{{- $kafka := .Values.usage.kafka -}}
{{- $isTls := and (eq .Values.usage.transport "kafka") (hasSuffix "ssl" $kafka.security) -}}
{{- if and $isTls (or $kafka.tls.ca.existingSecret $kafka.tls.certificateSecret) }}yes{{ end -}}
{{- end -}}

{{- define "pandal.kafka.mount" -}}
{{- if include "pandal.kafka.hasFiles" . -}}
- name: kafka
  mountPath: /etc/pandal/kafka
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "pandal.kafka.volume" -}}
{{- $tls := .Values.usage.kafka.tls -}}
{{- if include "pandal.kafka.hasFiles" . -}}
- name: kafka
  projected:
    defaultMode: 0440
    sources:
      {{- if $tls.ca.existingSecret }}
      - secret:
          name: {{ $tls.ca.existingSecret }}
          items:
            - key: {{ $tls.ca.key }}
              path: ca.crt
      {{- end }}
      {{- if $tls.certificateSecret }}
      - secret:
          name: {{ $tls.certificateSecret }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- end }}
{{- end -}}
{{- end -}}
