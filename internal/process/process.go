// Package process helps tests to build and run the node's program, read its output, and wait.
package process

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Timeout bounds every wait of a test for another process.
const Timeout = time.Minute

// Build writes the node's program to path; flags are those of go build. It
// works from any folder of the module. It uses go run, which caches the linked
// program: the first of several test binaries links it, and the others wait for
// that.
func Build(path string, flags ...string) error {
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("build the node: %w", err)
	}

	folder, err := os.Open(strings.TrimSpace(string(cache)))
	if err != nil {
		return fmt.Errorf("build the node: %w", err)
	}

	defer folder.Close() // unlocks it

	if err := lock(folder); err != nil {
		return fmt.Errorf("build the node: lock %s: %w", folder.Name(), err)
	}

	args := append(append([]string{"run", "-exec", "cp"}, flags...), "github.com/rlnode/rlnode/cmd/rlnode", path)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the node: %w\n%s", err, out)
	}

	return nil
}

// Output collects what a process prints, or what is logged; it may be read
// concurrently. The zero value is ready for use.
type Output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns all output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Count returns how often a text has been printed so far.
func (o *Output) Count(text string) int { return strings.Count(o.String(), text) }

var readyLine = regexp.MustCompile(`msg=ready .*data=(\S+) admin=(\S+)`)

// Ready returns the URLs of a node's two planes, once it has printed that it is ready.
func (o *Output) Ready() (data, admin string, ok bool) {
	m := readyLine.FindStringSubmatch(o.String())
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// Eventually polls until ok returns true. It fails the test after Timeout.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Timeout, what, ok)
}

// Within is Eventually with another bound. The longer it waits, the less often
// it polls, because polls take processor time from the program under test.
func Within(t testing.TB, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < bound; {
		if ok() {
			return
		}
		timer := time.NewTimer(min(max(time.Since(began)/10, 2*time.Millisecond), 50*time.Millisecond))
		<-timer.C
	}
	t.Fatalf("%s: not within %v", what, bound)
}

// FreePort returns no port that Linux gives, by default, to a listener on port 0
// or to an outgoing connection: somebody could have it before the program under
// test listens on it.
const minFreePort, maxFreePort = 16_384, 32_767

// returnedPorts are those that FreePort has returned.
var returnedPorts sync.Map

// FreePort returns a TCP port that is free on all addresses, unless another
// process takes it meanwhile. It returns no port twice.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := minFreePort + rand.IntN(maxFreePort-minFreePort+1)
		l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
		if err != nil {
			continue
		}

		l.Close()
		if _, again := returnedPorts.LoadOrStore(port, true); !again {
			return port
		}
	}

	t.Fatal("no port is free")
	return 0
}
