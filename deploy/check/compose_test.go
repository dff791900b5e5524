package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// loadCompose reads compose files with the library of `docker compose config`.
func loadCompose(t *testing.T, files ...string) *types.Project {
	t.Helper()
	for i, name := range files {
		files[i] = filepath.Join(root, name)
	}
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions(files, cli.WithWorkingDirectory(dir), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range project.Services {
		if s.MemLimit == 0 {
			t.Errorf("%s: its memory has no bound", s.Name)
		}
		if s.Build != nil && s.Build.Context != dir {
			t.Errorf("%s is built from %s, want the clone", s.Name, s.Build.Context)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to the network", s.Name, p.Published)
			}
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && (err != nil || !v.ReadOnly) {
				t.Errorf("%s: %s is not there (%v), or can be written", s.Name, v.Source, err)
			}
		}
	}
	return project
}

// Three nodes run as the compose file says, and answer on the host's side at
// the published addresses.
func TestCompose(t *testing.T) {
	t.Parallel()
	project := loadCompose(t, "docker-compose.yml")
	var ports []string
	for _, s := range project.Services {
		for _, p := range s.Ports {
			ports = append(ports, p.Published)
		}
		if s.Build == nil || !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") {
			t.Errorf("%s: it is not built, or may do more than it needs", s.Name)
		}
	}
	slices.Sort(ports)
	if have, want := strings.Join(ports,
		" "), "8080 8081 8082 8083 8090 8091 8092 8093 8100 8101 8102 8103"; have != want {
		t.Errorf("published ports: have %s, want %s", have, want)
	}

	made, n := buildImage(t), newNetwork(t)
	names := project.ServiceNames()
	slices.Sort(names)
	for i, name := range names {
		n.hosts[project.Services[name].Hostname] = n.address(i)
	}
	addresses := map[string]string{} // of the published ports
	nodes := map[string]*container{}
	for _, name := range names {
		s := project.Services[name]
		for _, p := range s.Ports {
			addresses[p.Published] = fmt.Sprintf("%s:%d", n.hosts[s.Hostname], p.Target)
		}
		c := made.container(made.cmd...)
		c.env = append(c.env, environment(s)...)
		c.env = append(c.env, "RLNODE_NAME="+s.Hostname) // in a container, this is its host name
		c.files = map[string]string{}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				text, err := os.ReadFile(v.Source)
				if err != nil {
					t.Fatal(err)
				}
				c.files[v.Target] = string(text)
			}
		}
		nodes[name] = n.start(c)
	}
	for name, c := range nodes {
		if test := project.Services[name].HealthCheck.Test; !slices.Equal(test, []string{"CMD", "/rlnode", "health"}) {
			t.Errorf("%s: health check %q", name, test)
		}
		eventually(t, name+" is healthy", func() bool {
			_, err := c.exec("health")
			return err == nil
		})
	}
	check, err := n.runOnHost("curl", "-sS", "-d", `{"rule": "login", "key": "198.51.100.7"}`,
		"http://"+addresses["8090"]+"/v1/check")
	if err != nil || !strings.Contains(check, `"limit":5`) {
		t.Errorf("a check at 8090: %v %s", err, check)
	}
	if page, err := n.runOnHost("curl", "-sS", "http://"+addresses["8101"]+"/ui/"); err != nil ||
		!strings.Contains(page, "<html") {
		t.Errorf("the dashboard at 8101: %v %s", err, page)
	}
	// Prometheus asks by the service's name and is served. A page that resolves its
	// own name to this address is not.
	for host, want := range map[string]string{"n3:8081": "200", "127.0.0.1:8101": "200",
		"localhost:8101": "200", "a-page.example": "421"} {
		status, err := n.runOnHost("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H",
			"Host: "+host, "http://"+addresses["8101"]+"/v1/rules")
		if err != nil || status != want {
			t.Errorf("the admin plane as %s: %v, have %s, want %s", host, err, status, want)
		}
	}
	rules := root + "/deploy/compose/rules.yaml"
	if out, err := n.runOnHost(made.dir+"/rlnode", "apply", "-f", rules, "--admin",
		"http://"+addresses["8081"]); err != nil {
		t.Errorf("apply at 8081: %v %s", err, out)
	}
	if out, err := nodes["n1"].exec("apply", "-f", "/etc/rlnode/rules.yaml"); err != nil {
		t.Errorf("apply in a container: %v %s", err, out)
	}
	members, err := n.runOnHost(made.dir+"/rlnode", "members", "--admin", "http://"+addresses["8091"])
	if err != nil || strings.Count(members, "alive") != 3 {
		t.Errorf("members: %v\n%s", err, members)
	}
	for _, c := range nodes {
		c.stop(t)
	}
}

// The file for monitoring adds Prometheus and Grafana.
func TestComposeMonitoring(t *testing.T) {
	project := loadCompose(t, "docker-compose.yml", "deploy/compose/monitoring.yml")
	if len(project.Services) != 5 {
		t.Errorf("%d services, want 5", len(project.Services))
	}
	for _, name := range []string{"prometheus", "grafana"} {
		if s := project.Services[name]; !strings.Contains(s.Image, ":v") && !strings.Contains(s.Image, ":1") {
			t.Errorf("%s: image %s has no version", name, s.Image)
		}
	}
}

func environment(s types.ServiceConfig) (env []string) {
	for key, value := range s.Environment {
		if value != nil {
			env = append(env, key+"="+*value)
		}
	}
	return env
}
