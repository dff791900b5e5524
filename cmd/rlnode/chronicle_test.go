package main

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

//go:embed testdata/log.txt
var expectedLog string

// mostLines is how many lines a node may log about one event.
const mostLines = 10

// chronicleTest reads the logs of a cluster.
type chronicleTest struct {
	*fleet
	leader, gone, other *fleetNode
	newcomer            *fleetNode              // joins, and leaves
	read                map[*fleetNode]int      // bytes of each log that were read
	before              map[*fleetNode][]string // lines of a process that was restarted, and that were not read
	stall               func() time.Duration
}

var logLine = regexp.MustCompile(`level=(INFO|WARN|ERROR) msg=("(?:[^"\\]|\\.)*"|\S+)`)

// expect waits until the logs have the lines of a section, in order, and reads them.
func (c *chronicleTest) expect(section string) {
	c.t.Helper()
	c.expectEvents(section, 1)
}

// expectEvents is expect for a section about n events, one after another.
func (c *chronicleTest) expectEvents(section string, n int) {
	c.t.Helper()
	want := c.section(section)
	have := map[*fleetNode][]string{}
	missing, began := 0, time.Now()
	process.Eventually(c.t, "the log tells of: "+section, func() bool {
		missing = 0
		for m, lines := range want {
			have[m] = c.unread(m)
			missing += len(lacking(have[m], lines))
		}
		return missing == 0 || c.stall() > stallLimit && time.Since(began) > process.Timeout/3
	})
	if missing > 0 {
		c.t.Skipf("the machine stood still for %v: another node may lead and say the rest", c.stall())
	}

	for _, m := range c.nodes {
		lines := c.unread(m)
		most := n*mostLines + min(countRelayLines(lines), 2*n*(len(c.nodes)-1))
		if len(lines) > most {
			c.t.Errorf("%s, %s: got %d lines, want at most %d:\n%s", section, m.name, len(lines),
				most, strings.Join(lines, "\n"))
		}
		if text := strings.Join(lines, "\n"); strings.Contains(text, "bills are") {
			c.t.Errorf("%s, %s: no bill is estimated or incomplete: got\n%s", section, m.name, text)
		}
		c.t.Logf("%s, %s:\n  %s", section, m.name, strings.Join(lines, "\n  "))
		c.read[m] = len(m.log.String())
		delete(c.before, m)
	}
}

// countRelayLines counts the lines that say how another node is reached. A slow
// machine adds some. When it starts nodes, they know each other for a while
// before they are connected, and reach each other through relays until then. And
// a process that waits long for a processor is silent, as if its link were cut.
func countRelayLines(lines []string) (n int) {
	for _, line := range lines {
		if strings.Contains(line, "is reached through a relay") || strings.Contains(line, "is reached directly again") {
			n++
		}
	}
	return n
}

// findLeader finds out which node leads. The others are those that go and stay in what follows.
func (c *chronicleTest) findLeader() {
	state, err := c.nodes[0].cluster()
	expect.NoError(c.t, err)
	c.gone = nil
	for _, m := range c.nodes {
		switch {
		case m.name == state.Leader:
			c.leader = m
		case c.gone == nil:
			c.gone = m
		default:
			c.other = m
		}
	}
}

// restart restarts a node in order. What its last process said is not read yet.
func (c *chronicleTest) restart(m *fleetNode) {
	m.signal(syscall.SIGTERM)
	m.awaitExit()
	c.before[m] = c.unread(m)
	c.read[m] = 0
	m.startProcess()
	c.awaitWhole()
}

// join starts another node.
func (c *chronicleTest) join() {
	c.newcomer = c.newNode(len(c.nodes)+1, 0, "--join", c.leader.at)
	c.nodes = append(c.nodes, c.newcomer)
	c.newcomer.startProcess()
	c.awaitWhole()
}

// leave makes the newcomer leave.
func (c *chronicleTest) leave() {
	code, out := c.newcomer.command("leave")
	if code != 0 {
		c.t.Fatalf("leave: got %d %s", code, out)
	}
	c.expect("leave")

	c.newcomer.signal(syscall.SIGTERM)
	c.newcomer.awaitExit()
	c.nodes = c.nodes[:len(c.nodes)-1]
}

// unread returns the lines at INFO and above that were not read yet.
func (c *chronicleTest) unread(m *fleetNode) []string {
	lines := slices.Clone(c.before[m])
	text := m.log.String()
	if c.read[m] > len(text) { // a new process has a new log
		c.read[m] = 0
	}
	for _, match := range logLine.FindAllStringSubmatch(text[c.read[m]:], -1) {
		lines = append(lines, match[1]+" "+strings.Trim(match[2], `"`))
	}
	return lines
}

// lacking returns those of some texts that lines don't contain, in this order.
// A text may name alternatives, as "a | b".
func lacking(lines, texts []string) []string {
	for _, line := range lines {
		isIn := func(text string) bool { return strings.Contains(line, text) }
		if len(texts) > 0 && slices.ContainsFunc(strings.Split(texts[0], " | "), isIn) {
			texts = texts[1:]
		}
	}
	return texts
}

// namesOf names two nodes as the log does.
func namesOf(a, b *fleetNode) string { return min(a.name, b.name) + " and " + max(a.name, b.name) }

func (c *chronicleTest) nameOfNewcomer() string {
	if c.newcomer == nil {
		return ""
	}
	return c.newcomer.name
}

// expectInAdmin waits until the admin plane has some lines of the logs, each
// once for all nodes that logged it at a time.
func (c *chronicleTest) expectInAdmin(texts ...string) {
	c.t.Helper()
	var answer string
	process.Eventually(c.t, "the events have what the log says", func() bool {
		_, answer, _ = c.other.call("GET", c.other.admin+"/v1/events?n=1000", "", "")
		for _, text := range texts {
			if !strings.Contains(answer, strings.ReplaceAll(text, "GONE", c.gone.name)) {
				return false
			}
		}
		return true
	})
	if strings.Count(answer, `"text":"rules are in force"`) != 1 {
		c.t.Errorf("an event is given once for each node: got %s", answer)
	}
}

// section returns what a section of the file expects of each node's log.
func (c *chronicleTest) section(name string) map[*fleetNode][]string {
	_, text, found := strings.Cut(expectedLog, "\n"+name+"\n")
	if !found {
		c.t.Fatalf("no section %q", name)
	}
	text, _, _ = strings.Cut(text, "\n\n")

	want := map[*fleetNode][]string{}
	for line := range strings.Lines(text) {
		who, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		m := map[string]*fleetNode{"leader": c.leader, "gone": c.gone, "other": c.other, "new": c.newcomer}[who]
		what = strings.NewReplacer("LEADER", c.leader.name, "GONE", c.gone.name, "OTHER",
			c.other.name, "NEW", c.nameOfNewcomer(),
			"FOLLOWERS", namesOf(c.gone, c.other), "REST", namesOf(c.leader, c.other)).Replace(what)
		want[m] = append(want[m], what)
	}
	return want
}

// What the log says tells in order what happened, with names, in few lines. These
// tests are apart because each event takes some ten seconds.

// newChronicleTest reads the logs of f, a cluster of three that has just started.
func newChronicleTest(f *fleet) *chronicleTest {
	c := &chronicleTest{fleet: f, read: map[*fleetNode]int{}, before: map[*fleetNode][]string{}, stall: watchStalls(f.t)}
	c.findLeader()
	c.expect("start")
	return c
}

func TestTheLogTellsOfAJoinAndALeave(t *testing.T) {
	t.Parallel()
	c := newChronicleTest(newFleet(t, 3))
	c.join()
	c.expect("join")
	c.leave()
}

func TestTheLogTellsOfAKill(t *testing.T) {
	t.Parallel()
	c := newChronicleTest(newFleet(t, 3))
	c.gone.kill()
	c.expect("kill")
	c.gone.startProcess()
	c.gone.waitReady()
	c.awaitWhole()
	c.expect("return")

	c.leader.apply(exactRules(1000))
	c.expect("rules")
	c.expectInAdmin("GONE has failed", "GONE is back", `"nodes":["n1","n2","n3"]`)
}

func TestTheLogTellsOfALostMajority(t *testing.T) {
	t.Parallel()
	c := newChronicleTest(newFleet(t, 3))
	c.gone.kill()
	c.other.kill()
	c.expect("minority")
	for _, m := range []*fleetNode{c.gone, c.other} {
		m.startProcess()
	}
	c.awaitWhole()
	c.expect("majority")
}

func TestTheLogTellsOfARollingRestart(t *testing.T) {
	t.Parallel()
	c := newChronicleTest(newFleet(t, 3))
	for _, m := range []*fleetNode{c.gone, c.other, c.leader} {
		c.restart(m)
	}
	c.expectEvents("rolling restart", 3)
}

// A node is cut off while all live, and the cut ends.
func TestTheLogTellsOfACut(t *testing.T) {
	t.Parallel()
	f := newLinkedFleet(t, 3)
	c := newChronicleTest(f)

	f.links.Cut(c.gone.ip)
	c.expect("cut")
	f.links.Mend(c.gone.ip)
	f.awaitWhole()
	c.expect("end of the cut")
}
