{{/* What several of the gateway's objects say. */}}

{{- define "pandal.gateway.selector" -}}
{{ include "pandal.selector" (list . "gateway") }}
{{- end -}}

{{/* One of the release's pods may be the only one that a volume lets in: others go to its node. */}}
{{- define "pandal.spool.affinity" -}}
{{- if and (ne .Values.usage.spool.kind "emptyDir") (ne .Values.usage.spool.accessMode "ReadWriteMany") -}}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "pandal.gateway.selector" . | nindent 10 }}
{{- end -}}
{{- end -}}

{{- define "pandal.spool.claimName" -}}
{{ include "pandal.name" (list . "spool") }}
{{- end -}}

{{/* The pools' Services, whose EndpointSlices gateways follow: each pod of a pool has its cache. */}}
{{- define "pandal.gateway.services" -}}
{{- $found := list -}}
{{- range .Values.pools -}}
{{- $found = append $found (include "pandal.pool.name" (list $ .)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "pandal.gateway.variables" -}}
{{- $gateway := .Values.gateway -}}
GATEWAY_HOST: "0.0.0.0"
GATEWAY_PORT: {{ $gateway.port | quote }}
GATEWAY_REPLICAS: {{ toJson $gateway.upstreams | quote }}
GATEWAY_REPLICA_SERVICES: {{ include "pandal.gateway.services" . | quote }}
GATEWAY_REPLICA_PORT_NAME: http
GATEWAY_KUBERNETES_NAMESPACE: {{ .Release.Namespace }}
GATEWAY_POLICY_FILE: {{ ternary "/tmp/last-good-policies.json" "/etc/pandal/policies/policies.json" (not (not $gateway.policies.url.existingSecret)) }}
GATEWAY_SPOOL_DIR: /var/lib/pandal/spool
GATEWAY_DRAIN_TIMEOUT_S: {{ $gateway.drain.timeoutS | int64 | quote }}
{{- if eq .Values.usage.transport "kafka" }}
{{ include "pandal.kafka.variables" (list . "GATEWAY_") }}
{{- end }}
{{- include "pandal.redis.variables" (list . "GATEWAY_") }}
{{- include "pandal.settings" (list "GATEWAY_" $gateway.settings) }}
{{- end -}}

{{/* A gateway's counters do not tell models apart: they are one pool's demand, or nobody's. */}}
{{- define "pandal.gateway.isOfOnePool" -}}
{{- if and (eq (len .Values.pools) 1) (not .Values.gateway.upstreams) }}yes{{ end -}}
{{- end -}}

{{/* Keys stay in their Secrets: Kubernetes puts them into the list when a pod starts. */}}
{{- define "pandal.gateway.providers" -}}
{{- $told := list -}}
{{- range $number, $provider := . }}
{{- $variable := printf "PROVIDER_KEY_%d" $number }}
{{ include "pandal.secretVariable" (list $variable $provider.apiKey) }}
{{- $entry := dict "name" $provider.name "url" $provider.url "api" (default "openai" $provider.api) "api_key" (printf "$(%s)" $variable) }}
{{- with $provider.models }}{{ $_ := set $entry "models" . }}{{ end }}
{{- with $provider.weight }}{{ $_ := set $entry "weight" . }}{{ end }}
{{- $told = append $told $entry }}
{{- end }}
{{- if $told }}
- name: GATEWAY_PROVIDERS
  value: {{ toJson $told | quote }}
{{- end }}
{{- end -}}

{{/*
A gateway without any replica is not ready, and gets no request; but it is a request that wakes a
pool which may have none.
*/}}
{{- define "pandal.gateway.readiness" -}}
{{- $path := "/ready" -}}
{{- $default := .Values.poolDefaults.autoscaling -}}
{{- range .Values.pools -}}
{{- $isScaled := dig "autoscaling" "enabled" $default.enabled . -}}
{{- if and $isScaled (eq (dig "autoscaling" "minReplicas" $default.minReplicas . | int) 0) }}{{ $path = "/health" }}{{ end -}}
{{- end -}}
{{ $path }}
{{- end -}}
