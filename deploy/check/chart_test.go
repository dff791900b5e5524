package check

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// release is one rendering of the chart.
type release struct {
	kubernetes string              // version; empty for 1.34
	name       string              // empty for rl
	values     string              // YAML
	provider   clusterWith         // objects that the cluster already has
	want       map[string][]string // expected objects: by kind, their names after the release's name
}

// nodesOnly is what every release has.
var nodesOnly = map[string][]string{
	"ServiceAccount": {""}, "Secret": {"-cluster", "-tokens"},
	"Service": {"", "-admin", "-headless"}, "StatefulSet": {""},
	"PodDisruptionBudget": {""}, "Pod": {"-test-check"},
}

// withObjects returns nodesOnly with more kinds, or with other names for the same kind.
func withObjects(more map[string][]string) map[string][]string {
	all := maps.Clone(nodesOnly)
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_ string, names []string) bool { return len(names) == 0 })
	return all
}

const aRule = `{version: 1, rules: [{name: per-ip, key: [ip], limits: [{limit: 100, per: 1m}]}]}`

// releases are typical sets of values.
var releases = map[string]release{
	"as it is":    {want: nodesOnly},
	"one node":    {values: `{replicaCount: 1, persistence: {enabled: false}, podDisruptionBudget: {enabled: false}}`, want: withObjects(map[string][]string{"PodDisruptionBudget": nil})},
	"five, zones": {values: `{replicaCount: 5, zoneFromPodLabel: true, spread: {zones: DoNotSchedule}, service: {trafficDistribution: PreferClose, type: LoadBalancer}}`, want: nodesOnly},
	"its own rules": {values: `{rules: ` + aRule +
		`, imagePullSecrets: [{name: registry}], tolerations: [{key: a, operator: Exists}], nodeSelector: {disk: ssd}}`,
		want: withObjects(map[string][]string{"ConfigMap": {"-rules"}, "Job": {"-rules"}})},
	"observed": {values: `{serviceMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}`,
		want: withObjects(map[string][]string{"ServiceMonitor": {""}, "PrometheusRule": {""},
			"ConfigMap": {"-dashboard"}})},
	"closed network": {values: `{networkPolicy: {enabled: true, clients: [{namespaceSelector: {matchLabels: {gateway: "yes"}}}], admins: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], regions: [10.1.0.0/16]}}`,
		want: withObjects(map[string][]string{"NetworkPolicy": {""}})},
	"HTTPS by cert-manager": {values: `{tls: {enabled: true, certManager: {issuerRef: {name: ca, kind: ClusterIssuer}, duration: 2160h, renewBefore: 360h}}, serviceMonitor: {enabled: true}, rules: ` + aRule + `}`,
		want: withObjects(map[string][]string{"Certificate": {""}, "ServiceMonitor": {""},
			"ConfigMap": {"-rules"}, "Job": {"-rules"}})},
	"secrets of others": {values: `{clusterSecret: {existingSecret: mine, key: secret}, auth: {existingSecret: tokens, tokensSecret: named}, tls: {enabled: true, existingSecret: cert, caKey: ""}, existingRulesConfigMap: rules, serviceAccount: {create: false}}`,
		want: withObjects(map[string][]string{"Secret": nil, "ServiceAccount": nil, "Job": {"-rules"}})},
	"a region of several": {name: "eu-limits-of-a-team-whose-name-is-very-long-indeed",
		values: `{region: eu, zone: eu-1a, primaryRegion: eu, wanJoin: [10.1.0.5, 10.1.0.6], replicaCount: 7, otlp: {endpoint: "http://collector.telemetry:4318"}}`,
		want:   nodesOnly},
	"old cluster, no tokens": {kubernetes: "1.27.3",
		values: `{auth: {enabled: false}, image: {digest: "sha256:` + strings.Repeat("0a", 32) +
			`"}, bind: "::", extraArgs: [--usage-months=0], extraEnv: [{name: TZ, value: UTC}], extraVolumes: [{name: more, emptyDir: {}}], extraVolumeMounts: [{name: more, mountPath: /more}], affinity: {podAntiAffinity: {}}, persistence: {storageClass: "-", retention: {whenScaled: Delete, whenDeleted: Delete}}}`,
		want: withObjects(map[string][]string{"Secret": {"-cluster"}})},
	"named otherwise": {values: `{fullnameOverride: limits, nameOverride: limiter, podLabels: {team: edge}, podAnnotations: {a: b}, priorityClassName: high, serviceMonitor: {enabled: true}, maxCounters: 20000000, goMemLimit: 3GiB, resources: {limits: {memory: 4Gi}}, persistence: {storageClass: fast, annotations: {a: b}}}`,
		want: withObjects(map[string][]string{"ServiceMonitor": {""}})},
}

func TestChart(t *testing.T) {
	t.Parallel()
	for name, r := range releases {
		t.Run(name, func(t *testing.T) {
			objects := r.render(t)
			have := map[string][]string{}
			full := ""
			for _, o := range objects {
				if set, ok := o.(*apps.StatefulSet); ok {
					full = set.Name
				}
			}
			for _, o := range objects {
				meta := accessor(t, o)
				kind := o.GetObjectKind().GroupVersionKind().Kind
				have[kind] = append(have[kind], strings.TrimPrefix(meta.GetName(), full))
				slices.Sort(have[kind])
				if meta.GetNamespace() != "limits" {
					t.Errorf("%s %s is in namespace %q", kind, meta.GetName(), meta.GetNamespace())
				}
			}
			if fmt.Sprint(have) != fmt.Sprint(r.want) {
				t.Errorf("objects:\nhave %v\nwant %v", have, r.want)
			}
			checkReferences(t, objects)
		})
	}
}

// `helm lint --strict` finds nothing.
func TestChartLint(t *testing.T) {
	t.Parallel()
	found := lint.RunAll(root+"/deploy/helm/rlnode", nil, "limits")
	for _, m := range found.Messages {
		if m.Severity >= support.WarningSev {
			t.Error(m)
		}
	}
}

// Wrong values are refused, and the message names them.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		`{replicas: 3}`:                                     "replicas",
		`{image: {tags: x}}`:                                "tags",
		`{replicaCount: 0}`:                                 "replicaCount",
		`{replicaCount: 2}`:                                 "replicaCount",
		`{replicaCount: 12}`:                                "replicaCount",
		`{bootstrapExpect: 2}`:                              "bootstrapExpect",
		`{ports: {http: 99999}}`:                            "http",
		`{tls: {enabled: true}}`:                            "issuerRef",
		`{rules: {rules: []}}`:                              "version",
		`{region: "a b"}`:                                   "region",
		`{terminationGracePeriodSeconds: 5}`:                "terminationGracePeriodSeconds",
		`{rules: ` + aRule + `, existingRulesConfigMap: x}`: "existingRulesConfigMap",
	} {
		if _, err := (release{values: values}).manifests(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v, want an error that names %q", values, err, want)
		}
	}
}

// The chart creates a secret once: the next rendering finds it.
func TestChartKeepsSecrets(t *testing.T) {
	t.Parallel()
	secrets := func(r release) map[string]map[string][]byte {
		found := map[string]map[string][]byte{}
		for _, o := range r.render(t) {
			if s, ok := o.(*core.Secret); ok {
				found[s.Name] = s.Data
			}
		}
		return found
	}
	first := secrets(release{})
	text := string(first["rl-rlnode-cluster"]["cluster-secret"])
	if b, err := base64.StdEncoding.DecodeString(text); err != nil || len(b) != 32 {
		t.Errorf("the cluster's secret is %q, want 32 bytes in base64", text)
	}
	if again := secrets(release{}); fmt.Sprint(again) == fmt.Sprint(first) {
		t.Error("two clusters got the same secrets")
	}
	var existing clusterWith
	for name, data := range first {
		existing = append(existing,
			&core.Secret{TypeMeta: typeOf("v1", "Secret"), ObjectMeta: named("limits", name), Data: data})
	}
	if again := secrets(release{provider: existing}); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("an upgrade changes secrets:\nhave %v\nwant %v", again, first)
	}
}

// render renders the release and decodes every object strictly into its own type.
func (r release) render(t *testing.T) []runtime.Object {
	t.Helper()
	manifests, err := r.manifests(t)
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoring.AddToScheme,
		certmanager.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decode := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer().Decode
	var objects []runtime.Object
	for _, file := range slices.Sorted(maps.Keys(manifests)) {
		if path.Ext(file) != ".yaml" {
			continue
		}
		for _, document := range strings.Split("\n"+manifests[file], "\n---") {
			var any map[string]any
			if err := yaml.Unmarshal([]byte(document), &any); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			if len(any) == 0 {
				continue
			}
			o, _, err := decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			objects = append(objects, o)
		}
	}
	return objects
}

func (r release) manifests(t *testing.T) (map[string]string, error) {
	t.Helper()
	loaded := loadChart(t)
	var values map[string]any
	if err := yaml.Unmarshal([]byte(r.values), &values); err != nil {
		t.Fatal(err)
	}
	if values == nil {
		values = map[string]any{}
	}
	capabilities := common.DefaultCapabilities.Copy()
	version, err := common.ParseKubeVersion(or(r.kubernetes, "1.34.1"))
	if err != nil {
		t.Fatal(err)
	}
	capabilities.KubeVersion = *version
	all, err := util.ToRenderValues(loaded, values,
		common.ReleaseOptions{Name: or(r.name, "rl"), Namespace: "limits", Revision: 1, IsInstall: true},
		capabilities)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(loaded, all, r.provider)
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.LoadDir(root + "/deploy/helm/rlnode")
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Validate(); err != nil {
		t.Fatal(err)
	}
	return loaded
}

// Every value has a default, and the schema knows it.
func TestChartSchema(t *testing.T) {
	var known struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	text, err := os.ReadFile(root + "/deploy/helm/rlnode/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	values := loadChart(t).Values
	for name := range known.Properties {
		if _, ok := values[name]; !ok && name != "global" {
			t.Errorf("values.yaml lacks %s", name)
		}
	}
}

// clusterWith is a Kubernetes cluster with these objects, for the chart to look up.
type clusterWith []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (c clusterWith) GetClientFor(version, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	client := fake.NewSimpleDynamicClient(scheme.Scheme, c...)
	group, err := schema.ParseGroupVersion(version)
	if err != nil {
		return nil, false, err
	}
	return client.Resource(group.WithResource(strings.ToLower(kind) + "s")), true, nil
}

// checkReferences checks the references between objects, and what Kubernetes would reject.
func checkReferences(t *testing.T, objects []runtime.Object) {
	t.Helper()
	var set *apps.StatefulSet
	existing := map[string]bool{"Secret/rl": true} // kind/name
	for _, o := range objects {
		meta := accessor(t, o)
		kind := o.GetObjectKind().GroupVersionKind().Kind
		existing[kind+"/"+meta.GetName()] = true
		if bad := validation.IsDNS1123Label(meta.GetName()); len(bad) > 0 {
			t.Errorf("%s %s: %v", kind, meta.GetName(), bad)
		}
		for key, value := range meta.GetLabels() {
			if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
				t.Errorf("%s %s: label %s=%s: %v", kind, meta.GetName(), key, value, bad)
			}
		}
		if s, ok := o.(*apps.StatefulSet); ok {
			set = s
		}
		if c, ok := o.(*certmanager.Certificate); ok {
			existing["Secret/"+c.Spec.SecretName] = true
		}
	}
	if set.Name != "rl-rlnode" { // hooks come and go, under names with suffixes
		for _, suffix := range []string{"-999", "-test-check", "-rules-abcde"} {
			if len(set.Name+suffix) > validation.DNS1123LabelMaxLength {
				t.Errorf("%s%s is too long", set.Name, suffix)
			}
		}
	}
	nodes := set.Spec.Template.Labels
	pods := map[string]core.PodTemplateSpec{"nodes": set.Spec.Template}
	for _, o := range objects {
		switch o := o.(type) {
		case *core.Service:
			if !selects(o.Spec.Selector, nodes) {
				t.Errorf("Service %s does not select nodes", o.Name)
			}
			for _, p := range o.Spec.Ports {
				if !hasPort(set, p.TargetPort.String(), p.Protocol) {
					t.Errorf("Service %s: nodes have no port %s", o.Name, p.TargetPort.String())
				}
			}
		case *batch.Job:
			pods["Job "+o.Name] = o.Spec.Template
		case *core.Pod:
			pods["Pod "+o.Name] = core.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		case *networking.NetworkPolicy:
			for _, rule := range o.Spec.Ingress {
				for _, p := range rule.Ports {
					if !hasPort(set, p.Port.String(), *p.Protocol) {
						t.Errorf("NetworkPolicy: nodes have no port %s", p.Port.String())
					}
				}
			}
		case *monitoring.ServiceMonitor:
			checkMonitor(t, o, objects)
		}
	}
	if !existing["Service/"+set.Spec.ServiceName] || !selects(set.Spec.Selector.MatchLabels, nodes) {
		t.Error("the StatefulSet does not find its service or its pods")
	}
	for where, pod := range pods {
		if where != "nodes" && selects(set.Spec.Selector.MatchLabels, pod.Labels) {
			t.Errorf("%s is taken for a node", where)
		}
		checkPod(t, where, pod, set, existing)
	}
}

func checkMonitor(t *testing.T, m *monitoring.ServiceMonitor, objects []runtime.Object) {
	t.Helper()
	found := 0
	for _, o := range objects {
		s, ok := o.(*core.Service)
		if ok && selects(m.Spec.Selector.MatchLabels, s.Labels) &&
			slices.ContainsFunc(s.Spec.Ports,
				func(p core.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
			found++
		}
	}
	if job := m.Spec.Endpoints[0].RelabelConfigs[0]; job.TargetLabel != "job" ||
		!strings.Contains(*job.Replacement, "rlnode") {
		t.Errorf("the alerts don't know these targets: %+v", job)
	}
	if found != 1 {
		t.Errorf("the ServiceMonitor finds %d services, want 1", found)
	}
}

// externalObjects are the objects that the values above refer to and others create.
var externalObjects = []string{"mine", "tokens", "named", "cert", "rules"}

func checkPod(t *testing.T, where string, pod core.PodTemplateSpec, set *apps.StatefulSet, existing map[string]bool) {
	t.Helper()
	refer := func(kind, name string) {
		if !existing[kind+"/"+name] && !slices.Contains(externalObjects, name) {
			t.Errorf("%s: there is no %s %s", where, kind, name)
		}
	}
	if a := pod.Spec.ServiceAccountName; a != "default" {
		refer("ServiceAccount", a)
	}
	volumes := map[string]bool{}
	if where == "nodes" {
		for _, claim := range set.Spec.VolumeClaimTemplates {
			volumes[claim.Name] = true
		}
	}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.Secret != nil {
			refer("Secret", v.Secret.SecretName)
		}
		if v.ConfigMap != nil {
			refer("ConfigMap", v.ConfigMap.Name)
		}
	}
	c := pod.Spec.Containers[0]
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s: there is no volume %s", where, m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("%s: nobody mounts %v", where, volumes)
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			refer("Secret", e.ValueFrom.SecretKeyRef.Name)
		}
	}
	s, p := c.SecurityContext, pod.Spec.SecurityContext
	if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
		s.Capabilities.Drop[0] != "ALL" || !*p.RunAsNonRoot ||
		p.SeccompProfile.Type != "RuntimeDefault" || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("%s may do more than it needs", where)
	}
	for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if where == "nodes" && !hasPort(set, probe.HTTPGet.Port.String(), "") {
			t.Errorf("a probe asks port %s", probe.HTTPGet.Port.String())
		}
	}
}
