{{/* A pool: what it says itself over what poolDefaults says. */}}

{{/* (list $ pool): the whole of it, as YAML. */}}
{{- define "pandal.pool" -}}
{{- $pool := mergeOverwrite (deepCopy (index . 0).Values.poolDefaults) (deepCopy (index . 1)) -}}
{{- if eq $pool.engine "auto" -}}
{{- $_ := set $pool "engine" (ternary "vllm" "pandal" (gt (int $pool.gpu.count) 0)) -}}
{{- end -}}
{{- toYaml $pool -}}
{{- end -}}

{{- define "pandal.pool.name" -}}
{{ include "pandal.name" (list (index . 0) (index . 1).name) }}
{{- end -}}

{{- define "pandal.pool.selector" -}}
{{ include "pandal.selector" (list (index . 0) "replica") }}
pandal.dev/pool: {{ (index . 1).name }}
{{- end -}}

{{/* An InferencePool selects by the selector; its endpoint picker reads the engine's type. */}}
{{- define "pandal.pool.podLabels" -}}
{{- $pool := index . 1 -}}
{{ include "pandal.podLabels" (list (index . 0) "replica") }}
pandal.dev/pool: {{ $pool.name }}
{{- with $pool.gpu.type }}
pandal.dev/gpu: {{ . | replace " " "-" | quote }}
{{- end }}
{{- $type := ternary "vllm" $pool.engine (eq $pool.engine "pandal") }}
llm-d.ai/engine-type: {{ $type }}
inference.networking.k8s.io/engine-type: {{ $type }}
{{- with $pool.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where the engine finds the model: named, fetched into the volume, or known by its name. */}}
{{- define "pandal.pool.modelPath" -}}
{{- $pool := index . 1 -}}
{{- if $pool.modelPath -}}{{ $pool.modelPath }}
{{- else if and $pool.downloads (eq $pool.engine "pandal") (hasSuffix ".gguf" (first $pool.downloads).path) -}}
/models/{{ (first $pool.downloads).path }}
{{- else if or $pool.downloads (ne $pool.engine "pandal") -}}/models/{{ $pool.model }}
{{- else -}}{{ $pool.model }}
{{- end -}}
{{- end -}}

{{/* Of our own engine. A batch holds a token of each running sequence, or nothing would start. */}}
{{- define "pandal.pool.variables" -}}
{{- $pool := index . 1 -}}
{{- $settings := deepCopy $pool.settings -}}
{{- with $settings.maxNumBatchedTokens -}}
{{- $_ := set $settings "maxNumBatchedTokens" (max (int64 .) (int64 $pool.maxNumSeqs)) -}}
{{- end -}}
REPLICA_HOST: "0.0.0.0"
REPLICA_PORT: {{ $pool.port | quote }}
REPLICA_MODEL: {{ include "pandal.pool.modelPath" . | quote }}
REPLICA_SERVED_MODEL_NAME: {{ $pool.model | quote }}
REPLICA_MODEL_CACHE_DIR: /models/.cache
REPLICA_COMPILE_CACHE_DIR: /models/.kernels
REPLICA_USAGE_JOURNAL_DIR: /var/lib/pandal/journal
REPLICA_DEVICE: {{ ternary "cuda" "cpu" (gt (int $pool.gpu.count) 0) }}
REPLICA_MAX_NUM_SEQS: {{ $pool.maxNumSeqs | int64 | quote }}
REPLICA_DRAIN_TIMEOUT_S: {{ $pool.drain.timeoutS | int64 | quote }}
{{- include "pandal.settings" (list "REPLICA_" $settings) }}
{{- end -}}

{{/* Of a foreign engine: the two speak alike, but not the same. */}}
{{- define "pandal.pool.arguments" -}}
{{- $pool := index . 1 -}}
{{- $path := include "pandal.pool.modelPath" . -}}
{{- $dtype := get (dict "fp32" "float32" "fp16" "float16") $pool.precision | default "bfloat16" -}}
{{- if eq $pool.engine "vllm" -}}
{{- list "--model" $path "--served-model-name" $pool.model "--host" "0.0.0.0" "--port" (toString $pool.port) "--max-num-seqs" (toString (int64 $pool.maxNumSeqs)) "--tensor-parallel-size" (toString (max 1 (int $pool.gpu.count))) "--dtype" $dtype "--shutdown-timeout" (toString (int64 $pool.drain.timeoutS)) | toYaml }}
{{- else -}}
{{- list "--model-path" $path "--served-model-name" $pool.model "--host" "0.0.0.0" "--port" (toString $pool.port) "--max-running-requests" (toString (int64 $pool.maxNumSeqs)) "--tp" (toString (max 1 (int $pool.gpu.count))) "--dtype" $dtype "--enable-metrics" | toYaml }}
{{- end }}
{{- if eq $pool.precision "fp8" }}
- --quantization
- fp8
{{- end }}
{{- if eq $pool.kvPrecision "fp8" }}
- --kv-cache-dtype
- {{ ternary "fp8" "fp8_e5m2" (eq $pool.engine "vllm") }}
{{- end }}
{{- with $pool.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* GPUs are limits, and the limits of everybody who asks for them. */}}
{{- define "pandal.pool.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if gt (int .gpu.count) 0 -}}
{{- $limits := get $resources "limits" | default dict -}}
{{- $_ := set $limits .gpu.resource (toString (int64 .gpu.count)) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
