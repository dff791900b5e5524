package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// releases enables the tests with two builds: of the base commit, which
// .ci/base names, and of this tree. CONTRIBUTING.md explains the base commit.
var releases = flag.Bool("releases", false, "roll clusters of the base commit to this tree and back; see make releases")

// rollingCluster is a cluster whose nodes run one of two builds. They take a
// snapshot every second or two and keep no log behind it. So a node that was
// away for a moment gets a snapshot, which the other build has made if it
// leads.
type rollingCluster struct {
	*fleet
	base, head string // paths of the programs
	next       cluster.Level
}

// newRollingCluster builds both programs, and starts n nodes of the base.
func newRollingCluster(t *testing.T, n int) *rollingCluster {
	t.Helper()
	if !*releases {
		t.Skip("make releases runs it")
	}
	dir := t.TempDir()
	r := &rollingCluster{fleet: newEmptyFleet(t), base: filepath.Join(dir, "rlnode-base"),
		head: filepath.Join(dir, "rlnode-head")}
	began := time.Now()
	buildCommit(t, baseCommit(t), r.base)
	if err := process.Build(r.head, "-tags", "faults"); err != nil { // see node's applyFaultSettings
		t.Fatal(err)
	}
	t.Logf("both were built in %v", time.Since(began).Round(time.Second))
	s := secret.New()
	for i := range n {
		r.nodes = append(r.nodes, r.node(i+1, n, r.base, s))
	}
	for _, m := range r.nodes {
		m.startProcess()
	}
	r.awaitWhole()
	r.next = r.levels()[0].Knows + 1
	return r
}

// node returns a node of the base or of this tree.
func (r *rollingCluster) node(i, expect int, build string, s secret.Secret) *fleetNode {
	m := r.newNode(i, expect)
	m.args = append(m.args, "--cluster-secret-file", r.writeSecrets(m.name, s), "--log-level", "debug")
	r.setBuild(m, build)
	return m
}

// setBuild makes a node run a build from its next start on. If this tree knows
// no higher feature level than the base, its nodes claim to know the next one.
func (r *rollingCluster) setBuild(m *fleetNode, build string) {
	m.build, m.env = build, []string{"RLNODE_SNAPSHOTS=5"}
	if build == r.head && r.next > cluster.Newest {
		m.env = append(m.env, fmt.Sprint("RLNODE_LEVEL=", r.next))
	}
}

// baseCommit returns the commit that .ci/base names.
func baseCommit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../.ci/base")
	expect.NoError(t, err)
	var commit string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			commit = strings.TrimSpace(line)
		}
	}
	if out, err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("commit %q of .ci/base is not in this clone (git fetch --unshallow brings it): %s", commit, out)
	}
	return commit
}

// buildCommit builds the program at a commit, with -trimpath: without it, the
// build cache would depend on the folder.
func buildCommit(t *testing.T, commit, to string) {
	t.Helper()
	dir := t.TempDir()
	unpack := `git -C ../.. archive "$1" | tar -x -C "$2"`
	if out, err := exec.Command("sh", "-c", unpack, "sh", commit, dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", commit, err, out)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "faults", "-o", to, "./cmd/rlnode")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", commit, err, out)
	}
}

// levels returns the feature levels that the members know.
func (r *rollingCluster) levels() (members []struct {
	Name  string
	Knows cluster.Level
}) {
	r.t.Helper()
	var view struct{ Members any }
	view.Members = &members
	text, err := r.nodes[0].get("/v1/level", &view)
	if err != nil || len(members) == 0 {
		r.t.Fatalf("levels: %v: %s", err, text)
	}
	return members
}

// leader returns the leader.
func (r *rollingCluster) leader() *fleetNode {
	r.t.Helper()
	var leader *fleetNode
	process.Eventually(r.t, "a leader is known", func() bool {
		for _, m := range r.nodes {
			if c, err := m.cluster(); err == nil {
				for _, one := range c.Members {
					if one.Leader && one.State == "alive" {
						leader = r.byName(one.Name)
						return true
					}
				}
			}
		}
		return false
	})
	return leader
}

// roll restarts a node gracefully with a build.
func (r *rollingCluster) roll(m *fleetNode, build string) {
	r.t.Helper()
	m.troubles.Add(1)
	m.signal(syscall.SIGTERM)
	expect.Equal(r.t, m.awaitExit(), 0, "%s: exit code", m.name)
	r.setBuild(m, build)
	m.startProcess()
	r.awaitWhole()
	m.troubles.Add(1)
}

// rollAll rolls all nodes that don't run a build yet: the leader last if last is set, else first.
func (r *rollingCluster) rollAll(build string, last bool, nodes int) {
	r.t.Helper()
	for range nodes {
		leader := r.leader()
		i := slices.IndexFunc(r.nodes, func(m *fleetNode) bool { return m.build != build && (m != leader) == last })
		if i < 0 {
			i = slices.IndexFunc(r.nodes, func(m *fleetNode) bool { return m.build != build })
		}
		if i < 0 {
			return
		}
		r.roll(r.nodes[i], build)
	}
}

// release returns the release that a program reports.
func release(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command(program, "version", "--json").Output()
	var b build
	if err == nil {
		err = json.Unmarshal(out, &b)
	}
	expect.NoError(t, err)
	return b.Version
}

// halfTime is how long a cluster runs with both builds.
func halfTime() time.Duration {
	if testing.Short() {
		return 10 * time.Second
	}
	return time.Minute
}

// TestReleases rolls a cluster of the base commit to this tree under load: node
// by node, half and half for a while, back before the level rises, and forward
// again. No check fails, nothing is forgotten, and rules are in force within
// five seconds. Once the level has risen, the base is kept out and says which
// release it needs.
func TestReleases(t *testing.T) {
	r := newRollingCluster(t, 5)
	load := r.startMixedLoad(2)
	defer load.halt()
	// First the leader runs the base and followers this tree; then the other way round.
	r.rollAll(r.head, true, 2)
	r.awaitLeaderOf(r.base)
	load.logProgress("two of five are rolled")
	time.Sleep(halfTime() / 2)
	r.rollAll(r.head, false, 1)
	r.awaitLeaderOf(r.head)
	load.logProgress("three of five are rolled, and lead")
	time.Sleep(halfTime() / 2)
	r.rollAll(r.head, true, 5)
	load.logProgress("all are rolled")
	back := 5
	if testing.Short() {
		back = 2
	}
	r.rollAll(r.base, false, back)
	load.logProgress("they are rolled back")
	r.rollAll(r.head, true, 5)
	load.logProgress("all are rolled again")
	r.raiseLevel(load)
	load.end(0)
	r.checkOneState()
}

// checkOneState checks that no node has noticed a state that differs from the other nodes'.
func (r *rollingCluster) checkOneState() {
	r.t.Helper()
	for _, m := range r.nodes {
		for _, figure := range []string{"rlnode_states_differ", "rlnode_stuck"} {
			expect.Equal(r.t, m.figure(figure), "0", "%s: %s", m.name, figure)
		}
	}
}

// TestReleasesUnderKills: half and half, led by either build, nodes are killed
// and come back by a snapshot of the other build.
func TestReleasesUnderKills(t *testing.T) {
	if testing.Short() {
		t.Skip("the long form of make releases runs it")
	}
	r := newRollingCluster(t, 5)
	load := r.startMixedLoad(3) // two of the nodes may be away
	defer load.halt()
	r.rollAll(r.head, true, 2)
	r.keepDown(r.follower(r.head), nil)
	load.logProgress("a follower of this tree has a snapshot of the base's leader")
	r.crash(r.follower(r.base))
	r.crash(r.leader())
	load.logProgress("a follower and a leader of the base were killed")
	r.awaitLeaderOf(r.head)
	if code, out := r.nodes[0].command("level", "--raise"); code == 0 &&
		out != fmt.Sprintf("the feature level is %d\n", r.next-1) {
		t.Errorf("the level rises while nodes run the base: %s", out)
	}
	if code, out := r.nodes[0].command("level", "--raise", "--to", fmt.Sprint(r.next)); code == 0 ||
		!strings.Contains(out, "run a later release on it") {
		t.Errorf("have %d, %s", code, out)
	}
	r.keepDown(r.follower(r.base), nil)
	load.logProgress("a follower of the base has a snapshot of this tree's leader")
	r.crash(r.follower(r.head))
	r.crash(r.leader())
	load.logProgress("a follower and a leader of this tree were killed")
	r.keepDown(r.follower(r.base), func() { r.crash(r.follower(r.head)) })
	load.logProgress("two were away at once, one of each build")
	r.rollAll(r.head, true, 5)
	// One node is away while the level rises, and learns of it from a snapshot.
	old := r.follower(r.head)
	r.setBuild(old, r.base)
	old.troubles.Add(1)
	old.kill()
	old.troubles.Add(-1) // see kill
	if code, out := r.leader().command("level", "--raise"); code != 0 {
		t.Fatal(out)
	}
	r.awaitSnapshots()
	old.startProcess()
	r.checkKeptOut(old,
		fmt.Sprintf("a snapshot can't be read: not a snapshot: it is of a later release; feature level %d is needed, and this release knows %d: run release %s or a later one",
			r.next, r.next-1, release(t, r.head)))
	old.stop()
	r.setBuild(old, r.head)
	old.startProcess()
	r.awaitWhole()
	old.troubles.Add(1)
	load.end(20)
	r.checkOneState()
}

// follower returns a node of a build that doesn't lead.
func (r *rollingCluster) follower(build string) *fleetNode {
	r.t.Helper()
	leader := r.leader()
	for _, m := range r.nodes {
		if m != leader && m.build == build {
			return m
		}
	}
	r.t.Fatal("no such follower")
	return nil
}

// awaitLeaderOf restarts leaders of the other build until a node of this build
// leads. It gives up after 20 tries.
func (r *rollingCluster) awaitLeaderOf(build string) {
	r.t.Helper()
	for range 20 {
		leader := r.leader()
		if leader.build == build {
			return
		}
		r.roll(leader, leader.build)
	}
	r.t.Fatalf("no node of %s leads", filepath.Base(build))
}

// crash kills a node and starts it again.
func (r *rollingCluster) crash(m *fleetNode) {
	r.t.Helper()
	m.kill()
	m.startProcess()
	r.awaitWhole()
	m.troubles.Add(1)
}

// keepDown crashes a node and keeps it down until the leader's log no longer
// has the entries it lacks. meanwhile runs in between.
func (r *rollingCluster) keepDown(m *fleetNode, meanwhile func()) {
	r.t.Helper()
	m.kill()
	r.awaitSnapshots()
	m.startProcess()
	if meanwhile != nil {
		meanwhile()
	}
	r.awaitWhole()
	m.troubles.Add(1)
	if !strings.Contains(m.log.String(), "nstalled remote snapshot") {
		r.t.Errorf("%s got no snapshot", m.name)
	}
}

// awaitSnapshots waits until the leader has taken two more snapshots.
func (r *rollingCluster) awaitSnapshots() {
	r.t.Helper()
	taken := func(m *fleetNode) int { return strings.Count(m.log.String(), "snapshot complete up to") }
	leader := r.leader()
	before := taken(leader)
	process.Eventually(r.t, "the leader takes snapshots", func() bool { return taken(leader) >= before+2 })
}

// raiseLevel raises the level, and tries to join with the base: as a member
// that is downgraded, and as a new node.
func (r *rollingCluster) raiseLevel(load *mixedLoad) {
	t := r.t
	code, out := r.nodes[1].command("level", "--raise")
	if code != 0 || out != fmt.Sprintf("the feature level is %d\n", r.next) {
		t.Fatalf("have %d, %s", code, out)
	}
	load.logProgress("the level is raised")
	old, needs := r.nodes[2], release(t, r.head)
	old.troubles.Add(1)
	old.stop()
	r.setBuild(old, r.base)
	old.startProcess()
	r.checkKeptOut(old,
		fmt.Sprintf("feature level %d is needed, and this release knows %d: run release %s or a later one", r.next, r.next-1, needs))
	old.stop()
	r.setBuild(old, r.head)
	old.startProcess()
	r.awaitWhole()
	old.troubles.Add(1)
	load.logProgress("the downgraded node is back")
	late := r.newNode(9, 0, "--join", r.nodes[0].ip, "--cluster-secret-file",
		filepath.Join(r.dir, r.nodes[0].name+".secret"))
	r.setBuild(late, r.base)
	late.startProcess()
	r.checkKeptOut(late,
		fmt.Sprintf("the cluster is at feature level %d, and node n9 knows %d (release %q): run release %q or a later one",
			r.next, r.next-1, release(t, r.base), needs))
	late.stop()
}

// checkKeptOut waits until a node says why it can't take part, and checks that it stays out.
func (r *rollingCluster) checkKeptOut(m *fleetNode, why string) {
	r.t.Helper()
	process.Eventually(r.t, m.name+" says "+why, func() bool {
		status, text, err := m.call("GET", m.data+"/readyz", "", "")
		return err == nil && status == 503 && strings.Contains(strings.ReplaceAll(text, `\"`, `"`), why)
	})
	checkReadyzStays(r.t, 503, m)
	said := 0
	for line := range strings.Lines(m.log.String()) {
		if strings.Contains(line, "level=ERROR") && strings.Contains(line, "or a later one") {
			said++
		}
	}
	expect.Equal(r.t, said, 1, "%s logs that times", m.name)
}
