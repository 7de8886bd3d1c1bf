{{- define "limpet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Settings as TOML. What JSON says of a text, a number, a truth value or a list of these, TOML says too.
    An `on` or `off` without quotes in a file of values is a truth value to Helm; some settings mean the word. */}}
{{- define "limpet.toml" -}}
{{- range $key, $value := mergeOverwrite (fromJson .own) .over }}
{{- if and (kindIs "bool" $value) (has $key (list "dns" "policies" "port_security" "services")) }}
{{- $value = ternary "on" "off" $value }}
{{- end }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{- /* The kubelet's probes ask at loopback, whatever else was wished: what does not answer there is ended. */}}
{{- define "limpet.probed" -}}
{{- if hasKey .settings "metrics_listen" }}
{{- $listen := .settings.metrics_listen }}
{{- if kindIs "string" $listen }}
{{- $listen = list $listen }}
{{- end }}
{{- $probed := false }}
{{- range $host := list "127.0.0.1" "0.0.0.0" "[::]" }}
{{- if has (printf "%s:%s" $host $.port) $listen }}
{{- $probed = true }}
{{- end }}
{{- end }}
{{- if not $probed }}
{{- $listen = append $listen (printf "127.0.0.1:%s" .port) }}
{{- end }}
{{- $_ := set .settings "metrics_listen" $listen }}
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
{{- $over = mergeOverwrite $over (deepCopy .Values.agent.settings) }}
{{- include "limpet.probed" (dict "settings" $over "port" "9471") }}
{{- toJson $over }}
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
{{- $over = mergeOverwrite $over (deepCopy .Values.controller.settings) }}
{{- $page := get $over "page_listen" | default "127.0.0.1:7480" }}
{{- if and .Values.page.enabled (not (has $page (list "127.0.0.1:7480" "0.0.0.0:7480" "[::]:7480"))) }}
{{- fail (printf "controller.settings.page_listen = %q: the page would never be ready, since the kubelet asks at 127.0.0.1:7480 (page.public has it listen on all addresses of its node)" $page) }}
{{- end }}
{{- include "limpet.probed" (dict "settings" $over "port" "9472") }}
{{- toJson $over }}
{{- end }}
