{{/* It needs the policies' file. */}}
{{- define "pandal.billing.keepsCounters" -}}
{{- if and .Values.billing.keepsCounters (not .Values.gateway.policies.url.existingSecret) }}yes{{ end -}}
{{- end -}}

{{- define "pandal.billing.variables" -}}
{{- $billing := .Values.billing -}}
{{- if not $billing.ledger.url.existingSecret }}
BILLING_LEDGER_URL: sqlite:////var/lib/pandal/ledger/ledger.db
{{- end }}
{{- if eq .Values.usage.transport "kafka" }}
{{ include "pandal.kafka.variables" (list . "BILLING_") }}
{{- else }}
BILLING_SPOOL_DIR: /var/lib/pandal/spool
{{- end }}
{{- if or $billing.prices.document $billing.prices.existingConfigMap }}
BILLING_PRICE_BOOK: /etc/pandal/prices/prices.toml
{{- end }}
{{- if or $billing.terms.document $billing.terms.existingConfigMap }}
BILLING_TERMS: /etc/pandal/terms/terms.yaml
{{- end }}
{{- if include "pandal.billing.keepsCounters" . }}
BILLING_POLICY_FILE: /etc/pandal/policies/policies.json
{{- end }}
BILLING_HOST: "0.0.0.0"
BILLING_PORT: {{ $billing.port | quote }}
{{- include "pandal.redis.variables" (list . "BILLING_") }}
{{- include "pandal.settings" (list "BILLING_" $billing.settings) }}
{{- end -}}
