{{- define "pandal.billing.variables" -}}
{{- $billing := .Values.billing -}}
{{- if not $billing.ledger.url.existingSecret }}
BILLING_LEDGER_URL: sqlite:////var/lib/pandal/ledger/ledger.db
{{- end }}
{{- if eq .Values.usage.transport "kafka" }}
BILLING_KAFKA_BOOTSTRAP: {{ .Values.usage.kafka.bootstrap | quote }}
{{- else }}
BILLING_SPOOL_DIR: /var/lib/pandal/spool
{{- end }}
{{- if or $billing.prices.document $billing.prices.existingConfigMap }}
BILLING_PRICE_BOOK: /etc/pandal/prices/prices.toml
{{- end }}
{{- include "pandal.settings" (list "BILLING_" $billing.settings) }}
{{- end -}}
