package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// identityOf returns the ID in a node's data directory.
func (m *fleetNode) identityOf() string {
	m.fleet.t.Helper()
	var file struct {
		ID string `json:"id"`
	}
	text, err := os.ReadFile(filepath.Join(m.fleet.dir, m.name, "node.json"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	expect.NoError(m.fleet.t, err)
	return file.ID
}

// awaitTurnedAway waits until a node that was started again says that it is no
// longer a member, and checks that the others agree.
func (m *fleetNode) awaitTurnedAway(how string, others ...*fleetNode) {
	m.fleet.t.Helper()
	process.Within(m.fleet.t, time.Minute, m.name+" is turned away", func() bool {
		status, text := m.readiness()
		return status == 503 && strings.Contains(text, how) &&
			strings.Contains(text, "start it with --rejoin") &&
			strings.Contains(m.log.String(), how)
	})
	for _, other := range others {
		if c, err := other.cluster(); err != nil ||
			slices.ContainsFunc(c.Members,
				func(one clusterMember) bool { return one.Name == m.name && one.State != "left" }) {
			m.fleet.t.Errorf("%s sees %s as a member: %v %+v", other.name, m.name, err, c.Members)
		}
	}
}

// rejoin starts a node with --rejoin and waits until it is a member.
func (m *fleetNode) rejoin() {
	m.fleet.t.Helper()
	before := m.identityOf()
	usage := filepath.Join(m.fleet.dir, m.name, "usage.db")
	expect.NoError(m.fleet.t,
		os.WriteFile(filepath.Join(m.fleet.dir, m.name, "usage.db.corrupt-kept"), []byte("x"), 0o600))
	m.args = append(m.args, "--rejoin")
	m.startProcess()
	m.fleet.awaitWhole()

	id := m.identityOf()
	folders, _ := filepath.Glob(filepath.Join(m.fleet.dir, m.name, "before-rejoin-*"))
	if id == before || len(folders) != 1 {
		m.fleet.t.Errorf("%s: got ID %s after %s, folders %v", m.name, id, before, folders)
	}
	for _, name := range []string{"raft.db", "counters.db", "node.json"} {
		if _, err := os.Stat(filepath.Join(folders[0], name)); err != nil {
			m.fleet.t.Errorf("set aside: %v", err)
		}
	}
	if _, err := os.Stat(usage + ".corrupt-kept"); err != nil {
		m.fleet.t.Errorf("bills: %v", err)
	}
}

// A node that an operator removed is refused when it comes back, and told who did
// it. With --rejoin, it joins as a new one, once, and keeps its bills. The others
// forget a removed one at once.
func TestRemovedNodesAreTurnedAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	n1, n2, n3 := f.nodes[0], f.nodes[1], f.nodes[2]
	n3.kill()
	process.Within(t, time.Minute, "n3 has failed, and is removed", func() bool {
		code, _ := n1.command("remove", "n3")
		return code == 0
	})
	for _, m := range []*fleetNode{n1, n2} {
		process.Eventually(t, m.name+" forgets n3", func() bool {
			c, err := m.cluster()
			return err == nil &&
				!slices.ContainsFunc(c.Members, func(one clusterMember) bool { return one.Name == "n3" })
		})
	}
	n3.startProcess()
	n3.awaitTurnedAway("was removed by 127.", n1, n2)
	n3.signal(syscall.SIGTERM)
	n3.awaitExit()
	n3.rejoin()

	id := n3.identityOf()
	n3.signal(syscall.SIGTERM)
	n3.awaitExit()
	n3.startProcess() // with --rejoin, which has done its work
	f.awaitWhole()
	expect.Equal(t, n3.identityOf(), id, "--rejoin at another start: got ID")
}

// So is a node that left by command.
func TestNodesThatLeftAreTurnedAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	n1, n2, n3 := f.nodes[0], f.nodes[1], f.nodes[2]
	if code, out := n2.command("leave"); code != 0 {
		t.Fatalf("leave: got %d %s", code, out)
	}
	n2.signal(syscall.SIGTERM)
	n2.awaitExit()
	n2.startProcess()
	n2.awaitTurnedAway("left by command of 127.", n1, n3)
	n2.kill()
	n2.rejoin()
}

// What a cluster agreed on is damaged at a node: with --rejoin, that goes with
// the node's identity, also if --rejoin has done its work before. The node is
// alone, because a cluster takes a minute to replace a lost identity.
func TestRejoinWithDamage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	n1 := f.nodes[0]
	n1.kill()
	n1.rejoin()

	n1.kill()
	raft := filepath.Join(f.dir, "n1", "raft.db")
	expect.NoError(t, os.WriteFile(raft, []byte("damaged"), 0o600))
	id := n1.identityOf()
	n1.startProcess()
	f.awaitWhole()
	if n1.identityOf() == id {
		t.Error("the damaged node has kept its identity")
	}
}

// A node that leaves because it is stopped with --leave-on-term was not removed
// by anybody: it joins again when it comes back.
func TestANodeThatLeftAtItsStopJoinsAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, "--leave-on-term")
	n3 := f.nodes[2]
	id := n3.identityOf()
	n3.signal(syscall.SIGTERM)
	n3.awaitExit()
	n3.startProcess()
	f.awaitWhole()
	expect.Equal(t, n3.identityOf(), id, "got ID")
}

// A node that has neither joined nor founded a cluster has none that it could leave.
func TestLeaveBeforeThereIsACluster(t *testing.T) {
	t.Parallel()
	f := newEmptyFleet(t)
	for i := range 2 { // of three: they see each other, and wait for the third
		m := f.newNode(i+1, 3)
		f.nodes = append(f.nodes, m)
		m.startProcess()
	}
	m := f.nodes[0]
	process.Eventually(t, "n1 sees n2", func() bool {
		c, err := m.cluster()
		return err == nil && len(c.Members) == 2
	})
	for _, path := range []string{"/v1/leave", "/v1/leave?force=true"} {
		if status, text, err := m.call("POST", m.admin+path, "", ""); err != nil || status != 503 ||
			!strings.Contains(text, `"code":"not-ready"`) ||
			!strings.Contains(text, "no cluster yet") {
			t.Errorf("%s: got %v %d %s", path, err, status, text)
		}
	}
	third := f.newNode(3, 3)
	f.nodes = append(f.nodes, third)
	third.startProcess()
	f.awaitWhole()
}
