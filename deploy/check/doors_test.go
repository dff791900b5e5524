package check

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// doorOf is what the chart must say of a port that others open connections to.
type doorOf struct {
	number int32
	flag   string // of serve
}

// A door of a node is the same in the flags, the ports of the container, the
// services, the probes and the policy: one that the policy forgets can't be
// reached where there is one, and one that it invents is open to all.
func TestDoorsOfTheChart(t *testing.T) {
	t.Parallel()
	doors := map[string]doorOf{
		"http": {18080, "--http-port"}, "grpc": {18082, "--grpc-port"},
		"redis": {16379, "--redis-port"}, "admin": {18081, "--admin-port"},
		"gossip": {17946, "--gossip-port"}, "gossip-udp": {17946, "--gossip-port"}, "peer": {17947, "--peer-port"},
		"wan": {17948, "--wan-port"}, "wan-udp": {17948, "--wan-port"},
	}
	r := release{values: `{networkPolicy: {enabled: true}, ports: {http: 18080, grpc: 18082, redis: 16379, admin: 18081, gossip: 17946, peer: 17947, wan: 17948}}`}
	served, allowed := map[string]int32{}, map[string]bool{}
	var set *apps.StatefulSet
	for _, o := range r.render(t) {
		switch o := o.(type) {
		case *apps.StatefulSet:
			set = o
		case *core.Service:
			for _, p := range o.Spec.Ports {
				served[p.TargetPort.String()] = p.Port
			}
		case *networking.NetworkPolicy:
			for _, rule := range o.Spec.Ingress {
				for _, p := range rule.Ports {
					allowed[p.Port.String()] = true
				}
			}
		}
	}

	container := set.Spec.Template.Spec.Containers[0]
	flags := strings.Join(append(slices.Clone(container.Args), environmentOf(container)...), "\n")
	for _, p := range container.Ports {
		door, known := doors[p.Name]
		if !known {
			t.Errorf("the port %s is new: add it here", p.Name)
		}
		if p.ContainerPort != door.number {
			t.Errorf("%s: the container has %d, want %d", p.Name, p.ContainerPort, door.number)
		}
		if served[p.Name] != door.number {
			t.Errorf("%s: a service has %d, want %d", p.Name, served[p.Name], door.number)
		}
		if !allowed[p.Name] {
			t.Errorf("%s: the policy lets nobody in", p.Name)
		}
		name := "RLNODE_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(door.flag, "--"), "-", "_"))
		if want := fmt.Sprint("=", door.number); !strings.Contains(flags, door.flag+want) &&
			!strings.Contains(flags, name+want) {
			t.Errorf("%s: neither %s%s nor %s%s is given", p.Name, door.flag, want, name, want)
		}
	}
	if len(container.Ports) != len(doors) {
		t.Errorf("the container has %d ports, want %d", len(container.Ports), len(doors))
	}
	for name, probe := range map[string]*core.Probe{"startup": container.StartupProbe,
		"readiness": container.ReadinessProbe, "liveness": container.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.String() != "http" {
			t.Errorf("the %s probe does not ask the data plane: %+v", name, probe)
		}
	}
}

func environmentOf(c core.Container) (list []string) {
	for _, e := range c.Env {
		list = append(list, e.Name+"="+e.Value)
	}
	return list
}

// What builds and releases the program is named by its hash: a tag can be moved.
func TestPinned(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir(root + "/.github/workflows")
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, file := range files {
		text, err := os.ReadFile(root + "/.github/workflows/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			_, action, ok := strings.Cut(line, "uses: ")
			if !ok {
				continue
			}
			used++
			action, _, _ = strings.Cut(strings.TrimSpace(action), " ")
			if _, hash, _ := strings.Cut(action, "@"); len(hash) != 40 || strings.Trim(hash, "0123456789abcdef") != "" {
				t.Errorf("%s: %s is not named by a commit", file.Name(), action)
			}
		}
	}
	if used == 0 {
		t.Error("no action was found")
	}
}
