{{/* Settings as environment variables: maxNumSeqs is REPLICA_MAX_NUM_SEQS. What is null is not told. */}}

{{/* (list "PREFIX_" settings) */}}
{{- define "pandal.settings" -}}
{{- $prefix := index . 0 -}}
{{- range $name, $value := index . 1 }}
{{- if not (kindIs "invalid" $value) }}
{{ $prefix }}{{ $name | snakecase | upper }}: {{ include "pandal.settingText" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* JSON, but for text: a number of any size is written in digits. */}}
{{- define "pandal.settingText" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{/* (list "VARIABLE" secretKey) */}}
{{- define "pandal.secretVariable" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ (index . 1).existingSecret }}
      key: {{ (index . 1).key }}
{{- end -}}

{{/*
(list $ names...): changes when one of these Secrets does, so that an upgrade rolls who reads it.
Empty where there is no cluster to ask, or where the Secret is not there yet.
*/}}
{{- define "pandal.secretsChecksum" -}}
{{- $ := index . 0 -}}
{{- $found := list -}}
{{- range rest . | compact | uniq -}}
{{- with lookup "v1" "Secret" $.Release.Namespace . -}}
{{- $found = append $found (toJson .data) -}}
{{- end -}}
{{- end -}}
{{- if $found }}{{ $found | join "\n" | sha256sum }}{{ end -}}
{{- end -}}
