package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
)

// The chart's pods find each other by the headless service, become ready by
// their probes, get the rules from the Job, and pass the chart's test.
func TestChartRuns(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{
		"tokens, HTTPS":         `{tls: {enabled: true, certManager: {issuerRef: {name: ca}}}, logFormat: text, rules: ` + aRule + `}`,
		"one node, open to all": `{replicaCount: 1, auth: {enabled: false}, logFormat: text, rules: ` + aRule + `}`,
	} {
		t.Run(name, func(t *testing.T) { runChart(t, release{values: values}) })
	}
}

func runChart(t *testing.T, r release) {
	t.Helper()
	objects := r.render(t)
	mounted := map[string]map[string]string{} // Secrets and ConfigMaps, by name
	var services, dnsNames []string
	var nodes *apps.StatefulSet
	var apply, ask core.PodSpec
	for _, o := range objects {
		switch o := o.(type) {
		case *core.Secret:
			mounted[o.Name] = map[string]string{}
			for key, value := range o.Data {
				mounted[o.Name][key] = string(value)
			}
		case *core.ConfigMap:
			mounted[o.Name] = o.Data
		case *core.Service:
			services = append(services, o.Name+"."+o.Namespace+".svc")
		case *certmanager.Certificate:
			dnsNames = o.Spec.DNSNames
			mounted[o.Spec.SecretName] = certificate(t, dnsNames)
		case *apps.StatefulSet:
			nodes = o
		case *batch.Job:
			apply = o.Spec.Template.Spec
		case *core.Pod:
			ask = o.Spec
		}
	}
	made, n := buildImage(t), newNetwork(t)
	var addresses []string
	for i := range int(*nodes.Spec.Replicas) {
		addresses = append(addresses, n.address(i))
	}
	for _, s := range services {
		n.hosts[s] = strings.Join(addresses, " ")
	}
	var pods []*container
	podName := func(i int) string { return fmt.Sprintf("%s-%d", nodes.Name, i) }
	for i, address := range addresses {
		n.hosts[podName(i)+"."+nodes.Spec.ServiceName+"."+nodes.Namespace+".svc"] = address
	}
	for i, address := range addresses {
		fields := map[string]string{"metadata.name": podName(i), "status.podIP": address}
		pods = append(pods, n.start(pod(t, made, nodes.Spec.Template.Spec, mounted, fields)))
	}
	c := nodes.Spec.Template.Spec.Containers[0]
	for i, address := range addresses {
		for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			url := strings.ToLower(string(probe.HTTPGet.Scheme)) + "://" + address + ":8080" + probe.HTTPGet.Path
			eventually(t, url+" says 200", func() bool {
				select {
				case <-pods[i].ended:
					t.Fatal("the node ended")
				default:
				}
				_, err := n.runOnHost("curl", "-fsSk", url)
				return err == nil
			})
		}
	}
	for what, spec := range map[string]core.PodSpec{"the Job": apply, "the test": ask} {
		if code := n.run(pod(t, made, spec, mounted, nil)); code != 0 {
			t.Errorf("%s: exit code %d", what, code)
		}
	}
	if len(mounted["rl-rlnode-tokens"]) > 0 {
		if out, err := n.runOnHost("curl", "-sk", "https://"+addresses[0]+":8080/v1/check", "-d",
			"{}"); !strings.Contains(out, "401") {
			t.Errorf("a check without a token: %v %s", err, out)
		}
	} else if out, err := n.runOnHost("curl", "-s", "-H", "Host: a-page.example", "http://"+
		addresses[0]+":8081/v1/rules"); !strings.Contains(out, "wrong-host") {
		t.Errorf("the admin plane answers to an unknown host name: %v %s", err, out)
	}
	// Like kubectl exec.
	last := len(pods) - 1
	if out, err := pods[0].exec("members"); err != nil || strings.Count(out, "alive") != len(pods) {
		t.Errorf("members: %v\n%s", err, out)
	}
	if last > 0 {
		if out, err := pods[last].exec("leave"); err != nil || !strings.Contains(out, podName(last)+" has left") {
			t.Errorf("leave: %v\n%s", err, out)
		}
	}
	for _, p := range pods {
		if log := p.log(); strings.Contains(log, "level=ERROR") {
			t.Errorf("a node's log has errors:\n%s", log)
		}
		p.stop(t)
	}
}

// pod returns the pod's container, with the contents of its mounts.
func pod(
	t *testing.T, made *image, spec core.PodSpec, mounted map[string]map[string]string, fields map[string]string,
) *container {
	t.Helper()
	from := spec.Containers[0]
	c := made.container()
	c.uid = int(*spec.SecurityContext.RunAsUser)
	var pairs []string // for the arguments
	for _, e := range from.Env {
		value := e.Value
		switch source := e.ValueFrom; {
		case source == nil:
		case source.FieldRef != nil:
			value = fields[source.FieldRef.FieldPath]
		case source.SecretKeyRef != nil:
			value = mounted[source.SecretKeyRef.Name][source.SecretKeyRef.Key]
		}
		value = strings.NewReplacer(pairs...).Replace(value)
		if value == "" {
			t.Fatalf("%s has no value", e.Name)
		}
		c.env = append(c.env, e.Name+"="+value)
		pairs = append(pairs, "$("+e.Name+")", value)
	}
	for _, a := range from.Args {
		c.args = append(c.args, strings.NewReplacer(pairs...).Replace(a))
	}
	c.files = map[string]string{}
	for _, m := range from.VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			continue // the data
		}
		var holds map[string]string
		switch v := spec.Volumes[i]; {
		case v.Secret != nil:
			holds = mounted[v.Secret.SecretName]
		case v.ConfigMap != nil:
			holds = mounted[v.ConfigMap.Name]
		}
		for key, text := range holds {
			c.files[m.MountPath+"/"+key] = text
		}
	}
	return c
}

// certificate returns the contents of a Secret of type kubernetes.io/tls.
func certificate(t *testing.T, dnsNames []string) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: dnsNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return map[string]string{"tls.crt": text("CERTIFICATE", signed),
		"ca.crt": text("CERTIFICATE", signed), "tls.key": text("PRIVATE KEY", private)}
}
