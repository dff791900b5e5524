package check

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// network is a bridge with containers, separate from the machine's networks, as
// a container engine would create it.
type network struct {
	t     *testing.T
	name  string            // of the bridge's network namespace; prefix of the containers' namespaces
	hosts map[string]string // names to addresses, separated by spaces
	next  int               // number of the next container
}

var networks atomic.Int32 // number of networks so far

// newNetwork creates a network. It skips the test if this machine does not allow that.
func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, name: fmt.Sprintf("rl%d-%d", os.Getpid(), networks.Add(1)), hosts: map[string]string{}, next: 2}
	if os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	if out, err := exec.Command("ip", "netns", "add", n.name).CombinedOutput(); err != nil {
		t.Skipf("network namespaces are not available: %v %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", n.name).Run() })
	n.must("ip", "-n", n.name, "link", "set", "lo", "up")
	n.must("ip", "-n", n.name, "link", "add", "br0", "type", "bridge")
	n.must("ip", "-n", n.name, "link", "set", "br0", "up")
	n.must("ip", "-n", n.name, "addr", "add", "10.77.0.1/24", "dev", "br0")
	return n
}

func (n *network) must(command ...string) string {
	n.t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

// address returns the address of the i-th container, from 0, of those that start next.
func (n *network) address(i int) string { return fmt.Sprintf("10.77.0.%d", n.next+i) }

// container is a process in its own root.
type container struct {
	image  string            // a folder
	files  map[string]string // paths in it to read-only contents
	data   string            // a folder for /data; empty for none
	env    []string
	args   []string // after the image's entry point
	uid    int
	output *bytes.Buffer // locked by mu
	mu     *sync.Mutex
	ns     string
	dir    string // its root
	cmd    *exec.Cmd
	ended  chan struct{}
}

// Write collects what the container prints.
func (c *container) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output.Write(p)
}

func (c *container) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output.String()
}

// start starts a container with the next address. The container ends with the test.
func (n *network) start(c *container) *container {
	n.t.Helper()
	t := n.t
	c.output, c.mu, c.ended = &bytes.Buffer{}, &sync.Mutex{}, make(chan struct{})
	c.ns = fmt.Sprintf("%s-%d", n.name, n.next)
	link := fmt.Sprintf("v%d", n.next)
	n.must("ip", "netns", "add", c.ns)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", c.ns).Run() })
	n.must("ip", "link", "add", link, "netns", n.name, "type", "veth", "peer", "name", "eth0", "netns", c.ns)
	n.must("ip", "-n", n.name, "link", "set", link, "master", "br0", "up")
	n.must("ip", "-n", c.ns, "addr", "add", n.address(0)+"/24", "dev", "eth0")
	n.must("ip", "-n", c.ns, "link", "set", "eth0", "up")
	n.must("ip", "-n", c.ns, "link", "set", "lo", "up")
	n.next++

	dir := t.TempDir()
	c.dir = dir
	n.must("cp", "-al", c.image+"/.", dir)
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for name, addresses := range n.hosts {
		for _, a := range strings.Fields(addresses) {
			fmt.Fprintf(&hosts, "%s %s\n", a, name)
		}
	}
	files := map[string]string{"/etc/hosts": hosts.String()}
	for path, text := range c.files {
		files[path] = text
	}
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Everything but the data is read-only, as in the compose file and the chart.
	script := fmt.Sprintf(`set -e; mount --bind %[1]s %[1]s; mount -t proc proc %[1]s/proc; `, dir)
	if c.data != "" {
		script += fmt.Sprintf(`mount --bind %s %s/data; `, c.data, dir)
	}
	script += fmt.Sprintf(`mount -o remount,ro,bind %[1]s; exec chroot --userspec=%[2]d:%[2]d %[1]s /rlnode "$@"`, dir, c.uid)
	c.cmd = exec.Command("ip", append([]string{"netns", "exec", c.ns, "sh", "-c", script, "sh"}, c.args...)...)
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = append([]string{"PATH=" + os.Getenv("PATH")}, c.env...), c, c
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer close(c.ended)
		c.cmd.Wait() // ProcessState has the result
	})
	t.Cleanup(func() {
		c.cmd.Process.Kill() // in case it still runs
		waiting.Wait()
		if t.Failed() {
			t.Logf("%v:\n%s", c.args, c.log())
		}
	})
	return c
}

// run starts a container and waits for its end.
func (n *network) run(c *container) (code int) {
	n.t.Helper()
	n.start(c)
	select {
	case <-c.ended:
	case <-time.After(maxWait):
		n.t.Fatalf("%v did not end:\n%s", c.args, c.log())
	}
	return c.cmd.ProcessState.ExitCode()
}

// stop asks the container to stop.
func (c *container) stop(t *testing.T) {
	t.Helper()
	c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(maxWait):
		t.Fatalf("%v did not stop:\n%s", c.args, c.log())
	}
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%v: exit code %d after SIGTERM", c.args, code)
	}
}

// exec runs another command of the image in the container.
func (c *container) exec(args ...string) (string, error) {
	user := fmt.Sprintf("--userspec=%[1]d:%[1]d", c.uid)
	cmd := exec.Command("ip", append([]string{"netns", "exec", c.ns, "chroot", user, c.dir, "/rlnode"}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, c.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// runOnHost runs a command on the containers' host.
func (n *network) runOnHost(command ...string) (string, error) {
	out, err := exec.Command("ip", append([]string{"netns", "exec", n.name}, command...)...).CombinedOutput()
	return string(out), err
}

// maxWait bounds every wait for another process.
const maxWait = 2 * time.Minute

// eventually polls until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(maxWait); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", maxWait, what)
		}
	}
}
