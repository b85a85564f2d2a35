{{/* What every pod has: rights taken away, a place, and time to end. */}}

{{/* The namespace may enforce Pod Security "restricted". The argument: whom it runs as. */}}
{{- define "pandal.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "pandal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
(list $ placement selector): where pods go. Service links are off: Kubernetes would tell each pod
GATEWAY_PORT and the like of its neighbours' services, and a variable that is no setting is refused.
*/}}
{{- define "pandal.placement" -}}
{{- $ := index . 0 -}}
{{- $placement := index . 1 -}}
{{- $selector := index . 2 -}}
enableServiceLinks: false
{{- with $.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $placement.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $placement.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $placement.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $placement.topologySpread }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{/* (list placement own): affinity of values, or the chart's own. */}}
{{- define "pandal.affinity" -}}
{{- with (index . 0).affinity | default (index . 1) -}}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Endpoints forget the pod while it sleeps; then it is asked to end. */}}
{{- define "pandal.preStop" -}}
{{- if . }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
{{- end -}}

{{/* (list volume "claim's name"): the source of a volume. */}}
{{- define "pandal.volume" -}}
{{- $volume := index . 0 -}}
{{- if eq $volume.kind "emptyDir" -}}
emptyDir:
  sizeLimit: {{ $volume.size }}
{{- else -}}
persistentVolumeClaim:
  claimName: {{ ternary $volume.existingClaim (index . 1) (eq $volume.kind "existingClaim") }}
{{- end -}}
{{- end -}}

{{/* (list $ "component" "name" volume): the claim, if it is to be made. */}}
{{- define "pandal.claim" -}}
{{- $volume := index . 3 -}}
{{- if eq $volume.kind "claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "pandal.metadata" (list (index . 0) (index . 1) (index . 2)) | nindent 2 }}
  {{- if $volume.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
spec:
  accessModes: [{{ $volume.accessMode }}]
  {{- with $volume.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ $volume.size }}
{{- end -}}
{{- end -}}

{{/* (list $ "component" "name" selector disruption): its budget. */}}
{{- define "pandal.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "pandal.metadata" (list (index . 0) (index . 1) (index . 2)) | nindent 2 }}
spec:
  maxUnavailable: {{ (index . 4).maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- index . 3 | nindent 6 }}
{{- end -}}

{{/*
(list $ "Deployment" apiVersion "kind" "name"): the count to write though the named object scales the
Deployment; empty: none. A count that was written once cannot be left out again, or Kubernetes puts 1 in
its place. So the upgrade that turns scaling on, and those after it, write what is there, until the API
server knows somebody else for who wrote it: with server-side apply what is left out is then his. Where
Helm itself compares manifests it never is.
*/}}
{{- define "pandal.keptCount" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
{{- $live := lookup "apps/v1" "Deployment" $namespace (index . 1) -}}
{{- if $live -}}
{{- $isKept := hasKey ($live.metadata.annotations | default dict) "pandal.dev/kept-count" -}}
{{- if or $isKept (not (lookup (index . 2) (index . 3) $namespace (index . 4))) -}}
{{- $isApplied := false -}}
{{- $isAnothers := false -}}
{{- range $live.metadata.managedFields -}}
{{- $owned := dig "fieldsV1" "f:spec" dict . -}}
{{- $isOfManifest := hasKey $owned "f:template" -}}
{{- if and $isOfManifest (eq .operation "Apply") }}{{ $isApplied = true }}{{ end -}}
{{- if and (hasKey $owned "f:replicas") (not $isOfManifest) }}{{ $isAnothers = true }}{{ end -}}
{{- end -}}
{{- if not (and $isApplied $isAnothers) }}{{ $live.spec.replicas | int64 }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
