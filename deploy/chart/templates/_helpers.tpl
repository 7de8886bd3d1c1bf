{{- define "limpet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Settings as TOML. What JSON says of a text, a number, a truth value or a list of these, TOML says too. */}}
{{- define "limpet.toml" -}}
{{- range $key, $value := mergeOverwrite (fromJson .own) .over }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{- define "limpet.agent.over" -}}
{{- $over := dict }}
{{- with .Values.kubernetesServer }}
{{- $_ := set $over "kubernetes_server" . }}
{{- end }}
{{- if .Values.serviceMonitor.enabled }}
{{- $_ := set $over "metrics_listen" (list "[::]:9471") }}
{{- end }}
{{- if .Values.dns.enabled }}
{{- $_ := set $over "dns" "on" }}
{{- if .Values.serviceMonitor.enabled }}
{{- $_ := set $over "dns_metrics_listen" (list "[::]:9473") }}
{{- end }}
{{- end }}
{{- if .Values.agent.ebpf }}
{{- $_ := set $over "services_backend" "auto" }}
{{- end }}
{{- mergeOverwrite $over (deepCopy .Values.agent.settings) | toJson }}
{{- end }}

{{- define "limpet.controller.over" -}}
{{- $over := dict }}
{{- with .Values.kubernetesServer }}
{{- $_ := set $over "kubernetes_server" . }}
{{- end }}
{{- with .Values.podCidrs }}
{{- $_ := set $over "pod_cidrs" . }}
{{- end }}
{{- with .Values.serviceCidrs }}
{{- $_ := set $over "service_cidrs" . }}
{{- end }}
{{- if .Values.serviceMonitor.enabled }}
{{- $_ := set $over "metrics_listen" (list "[::]:9472") }}
{{- end }}
{{- if .Values.page.public }}
{{- $_ := set $over "page_listen" "[::]:7480" }}
{{- end }}
{{- with .Values.page.names }}
{{- $_ := set $over "page_names" . }}
{{- end }}
{{- if .Values.page.tlsSecret }}
{{- $_ := set $over "page_certificate" "/etc/limpet-page/tls.crt" }}
{{- $_ := set $over "page_key" "/etc/limpet-page/tls.key" }}
{{- end }}
{{- mergeOverwrite $over (deepCopy .Values.controller.settings) | toJson }}
{{- end }}
