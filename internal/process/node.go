package process

import (
	"os"
	"os/exec"
	"sync"
	"testing"
)

// Node is a running single-node cluster.
type Node struct {
	Data, Admin string // URLs of its planes

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process ends
}

// Start runs a node on free ports of 127.0.0.1 until the test ends, and returns
// once it is ready. program is the file that Build wrote; args are further
// flags of serve.
func Start(t testing.TB, program string, args ...string) *Node {
	t.Helper()
	log := &Output{}
	n := &Node{exited: make(chan struct{})}

	n.cmd = exec.Command(program, append([]string{
		"serve", "--data-dir", t.TempDir(), "--http-port", "0", "--admin-port", "0",
	}, args...)...)
	n.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	n.cmd.Stdout = log
	n.cmd.Stderr = log

	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}

	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer close(n.exited)
		n.cmd.Wait() // its log shows how it ended
	})

	t.Cleanup(func() {
		n.cmd.Process.Kill() // if it still runs
		waiting.Wait()
		if t.Failed() {
			t.Logf("the node's log:\n%s", log)
		}
	})

	Eventually(t, "the node is ready", func() bool {
		select {
		case <-n.exited:
			t.Fatalf("the node ended:\n%s", log)
		default:
		}

		var ok bool
		n.Data, n.Admin, ok = log.Ready()
		return ok
	})

	return n
}

// Stop sends the node a signal, and waits until it exits.
func (n *Node) Stop(s os.Signal) {
	n.cmd.Process.Signal(s) // if it still runs
	<-n.exited
}
