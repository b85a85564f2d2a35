{{/* Each alert has a page in docs/runbooks, by its name without its speed. */}}

{{/* (list $ "Name" "severity" "for" "expression" "summary") */}}
{{- define "pandal.alert" -}}
{{- $ := index . 0 -}}
- alert: {{ index . 1 }}
  expr: {{ index . 4 | quote }}
  for: {{ index . 3 }}
  labels:
    severity: {{ index . 2 }}
    release: {{ $.Release.Name }}
  annotations:
    summary: {{ index . 5 | quote }}
    runbook_url: {{ $.Values.monitoring.alerts.runbooks | trimSuffix "/" }}/{{ index . 1 | trimSuffix "Fast" | trimSuffix "Slowly" }}.md
{{- end -}}

{{/*
(list "bad ratio over %s" budget factor "long" "short"): a budget that burns so much faster than it
lasts, over a long window, and still over a short one.
https://sre.google/workbook/alerting-on-slos/
*/}}
{{- define "pandal.burn" -}}
{{- $limit := mulf (index . 1) (index . 2) -}}
{{- $long := index . 0 | replace "WINDOW" (index . 3) -}}
{{- $short := index . 0 | replace "WINDOW" (index . 4) -}}
({{ $long }}) > {{ $limit }} and ({{ $short }}) > {{ $limit }}
{{- end -}}

{{- define "pandal.alerts.objectives" -}}
{{- $objectives := .Values.monitoring.alerts.objectives -}}
{{- $here := printf "namespace=%q" .Release.Namespace -}}
{{- $failed := printf "sum(rate(pandal_gateway_requests_total{%s, status=~\"5..\"}[WINDOW])) / sum(rate(pandal_gateway_requests_total{%s}[WINDOW]))" $here $here -}}
{{- $late := printf "1 - sum(rate(pandal_gateway_time_to_first_token_seconds_bucket{%s, le=%q}[WINDOW])) / sum(rate(pandal_gateway_time_to_first_token_seconds_count{%s}[WINDOW]))" $here $objectives.ttftS $here -}}
{{- $unavailable := subf 1.0 $objectives.availability -}}
{{- $slow := subf 1.0 $objectives.ttft -}}
{{ include "pandal.alert" (list . "PandalAvailabilityBurnsFast" "critical" "2m" (include "pandal.burn" (list $failed $unavailable 14.4 "1h" "5m")) "A thirtieth of the month's errors in under two hours") }}
{{ include "pandal.alert" (list . "PandalAvailabilityBurnsSlowly" "warning" "15m" (include "pandal.burn" (list $failed $unavailable 6.0 "6h" "30m")) "The month's errors in five days") }}
{{ include "pandal.alert" (list . "PandalFirstTokensLateFast" "critical" "2m" (include "pandal.burn" (list $late $slow 14.4 "1h" "5m")) (printf "First tokens take more than %s s, far too often" $objectives.ttftS)) }}
{{ include "pandal.alert" (list . "PandalFirstTokensLateSlowly" "warning" "15m" (include "pandal.burn" (list $late $slow 6.0 "6h" "30m")) (printf "First tokens take more than %s s too often" $objectives.ttftS)) }}
{{- end -}}

{{- define "pandal.alerts.fleet" -}}
{{- $here := printf "{namespace=%q}" .Release.Namespace -}}
{{- $hits := printf "sum(rate(vllm:prefix_cache_hits_total%s[WINDOW])) / sum(rate(vllm:prefix_cache_queries_total%s[WINDOW]))" $here $here -}}
{{- $refused := printf "sum(rate(pandal_gateway_requests_total{namespace=%q, status=\"429\"}[5m]))" .Release.Namespace -}}
{{- $crowded := printf "sum(pandal_gateway_waiting_requests%s) > 0 or sum(rate(pandal_gateway_refusals_total{namespace=%q, reason=\"server_is_overloaded\"}[5m])) > 0" $here .Release.Namespace -}}
{{- $used := printf "sum(increase(pandal_gateway_tokens_total%s[1h]" $here -}}
{{- $spent := printf "sum(increase(pandal_billing_charged_usd_total%s[1h]" $here -}}
{{ include "pandal.alert" (list . "PandalKvCacheFull" "warning" "10m" (printf "vllm:kv_cache_usage_perc%s > 0.95" $here) "{{ $labels.pod }} has no room for more context") }}
{{ include "pandal.alert" (list . "PandalPreemptions" "warning" "10m" (printf "sum by (pod) (rate(vllm:num_preemptions_total%s[5m])) > 0.1" $here) "{{ $labels.pod }} computes again what it had computed") }}
{{ include "pandal.alert" (list . "PandalPrefixHitsDropped" "warning" "30m" (printf "%s < 0.5 * (%s) and sum(rate(vllm:prefix_cache_queries_total%s[30m])) > 100" ($hits | replace "WINDOW" "30m") ($hits | replace "WINDOW" "1d") $here) "Half of the prefixes that were found yesterday are computed anew") }}
{{ include "pandal.alert" (list . "PandalTokensSurge" "warning" "15m" (printf "%s)) > 3 * %s offset 1d)) and %s)) > 1e6" $used $used $used) "Three times the tokens of this hour yesterday") }}
{{ include "pandal.alert" (list . "PandalBudgetBurns" "warning" "5m" (printf "max by (tenant, rule, budget) (pandal_gateway_tenant_budget_used_ratio%s) > 0.9" $here) "{{ $labels.tenant }} has spent nine tenths of {{ $labels.budget }} ({{ $labels.rule }})") }}
{{ include "pandal.alert" (list . "PandalNoisyNeighbour" "warning" "10m" (printf "sum by (tenant) (rate(pandal_gateway_tenant_tokens_total%s[5m])) > 0.5 * scalar(sum(rate(pandal_gateway_tokens_total%s[5m]))) and on() (%s)" $here $here $crowded) "{{ $labels.tenant }} has more than half of all tokens while others wait or are turned away") }}
{{ include "pandal.alert" (list . "PandalRetryStorm" "warning" "5m" (printf "%s > 0.5 * sum(rate(pandal_gateway_requests_total%s[5m])) and %s > 1" $refused $here $refused) "Most requests are refused, and come again") }}
{{ include "pandal.alert" (list . "PandalQuotaStoreLost" "critical" "1m" (printf "max(pandal_gateway_quota_store_lost%s) == 1" $here) "Quotas are kept by shares, and soon nothing is admitted") }}
{{ include "pandal.alert" (list . "PandalStreamsBreak" "warning" "5m" (printf "sum(rate(pandal_gateway_stream_breaks_total%s[5m])) > 0.1" $here) "Replicas end streams before their end") }}
{{ include "pandal.alert" (list . "PandalPolicyRefused" "warning" "1m" (printf "max(pandal_gateway_policy_refused%s) == 1" $here) "The stored policy is no good, and the last good one stays in force") }}
{{ include "pandal.alert" (list . "PandalPolicyStoreLost" "critical" "5m" (printf "max(pandal_gateway_policy_store_lost%s) == 1" $here) "Changes of policies and keys do not arrive") }}
{{ include "pandal.alert" (list . "PandalBlocksUnaccounted" "critical" "0m" (printf "sum by (pod) (increase(pandal:block_audit_faults_total%s[10m])) > 0" $here) "{{ $labels.pod }} lost count of its KV blocks: a defect") }}
{{ include "pandal.alert" (list . "PandalJournalLoses" "warning" "0m" (printf "sum by (pod) (increase(pandal:usage_journal_lost_total%s[10m])) > 0" $here) "{{ $labels.pod }} has no second witness of what was used") }}
{{- if eq .Values.usage.transport "kafka" }}
{{ include "pandal.alert" (list . "PandalOutboxGrows" "critical" "10m" (printf "sum(pandal_gateway_outbox_waiting_bytes%s) > %v" $here (divf .Values.gateway.settings.spoolMaxWaitingBytes 10)) "Usage events do not reach Kafka") }}
{{ include "pandal.alert" (list . "PandalOutboxSheds" "critical" "0m" (printf "sum(increase(pandal_gateway_shed_events_total%s[10m])) > 0" $here) "The outbox was full: usage events were given up") }}
{{- end }}
{{- if .Values.billing.enabled }}
{{ include "pandal.alert" (list . "PandalBillingStopped" "critical" "5m" (printf "time() - max by (pod) (pandal_billing_read_timestamp_seconds%s) > 600 or absent(pandal_billing_read_timestamp_seconds%s)" $here $here) "Nothing has been booked without a fault for ten minutes") }}
{{- /* By their time: a process that posts before it is scraped tells no increase. */}}
{{- $lately := printf "time() - max(pandal_billing_event_timestamp_seconds{namespace=%q, outcome=\"OUTCOME\"}) < 3600" .Release.Namespace }}
{{ include "pandal.alert" (list . "PandalEventsUnpriced" "warning" "0m" (printf "%s or max(pandal_billing_unpriced_events%s) > 0" ($lately | replace "OUTCOME" "unpriced") $here) "Usage waits for a price") }}
{{ include "pandal.alert" (list . "PandalDeadLetters" "warning" "0m" (printf "%s or max(pandal_billing_dead_letters%s) > max(pandal_billing_dead_letters%s offset 1h)" ($lately | replace "OUTCOME" "dead") $here $here) "Usage events were put aside and are not billed") }}
{{ include "pandal.alert" (list . "PandalSpendSurges" "warning" "15m" (printf "%s)) > 3 * %s offset 1d)) and %s)) > 10" $spent $spent $spent) "Three times the money of this hour yesterday") }}
{{- end }}
{{- if and .Values.billing.enabled (gt (float64 .Values.billing.settings.reconcileIntervalS) 0.0) }}
{{ include "pandal.alert" (list . "PandalBooksDiffer" "critical" "0m" (printf "sum by (kind) (pandal_billing_differences%s) > 0" $here) "Engine, quota and ledger differ: {{ $labels.kind }}") }}
{{ include "pandal.alert" (list . "PandalBooksUnchecked" "warning" "10m" (printf "time() - max(pandal_billing_reconciled_timestamp_seconds%s) > %v or absent(pandal_billing_reconciled_timestamp_seconds%s)" $here (mulf .Values.billing.settings.reconcileIntervalS 3) $here) "Nobody has compared the accounts for three intervals") }}
{{- end }}
{{- if include "pandal.autoscaler.isInstalled" . }}
{{ include "pandal.alert" (list . "PandalNobodyScales" "warning" "5m" (printf "sum(pandal_autoscaler_leads%s) < 1 or absent(pandal_autoscaler_leads%s)" $here $here) "No autoscaler leads") }}
{{ include "pandal.alert" (list . "PandalScalingLags" "warning" "15m" (printf "sum by (pool) (max by (pool, variant) (pandal_autoscaler_wanted_replicas%s)) > sum by (pool) (max by (pool, variant) (pandal_autoscaler_replicas{namespace=%q, phase=\"ready\"}))" $here .Release.Namespace) "{{ $labels.pool }} has fewer ready replicas than are wanted") }}
{{ include "pandal.alert" (list . "PandalScalersConflict" "warning" "5m" (printf "max by (pool) (pandal_autoscaler_conflict%s) == 1" $here) "Somebody else scales {{ $labels.pool }}") }}
{{ include "pandal.alert" (list . "PandalReplicasUnschedulable" "warning" "15m" (printf "max by (pool) (pandal_autoscaler_replicas{namespace=%q, phase=\"unschedulable\"}) > 0" .Release.Namespace) "No node has the GPUs that {{ $labels.pool }} needs") }}
{{- end }}
{{- end -}}
