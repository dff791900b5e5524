//go:build faults

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/pairs"
)

const (
	// pairNodes is enough for a majority besides one broken node and one dead one.
	pairNodes = 5
	// lastingFault is how long one fault may leave partitions without an owner.
	lastingFault = 10 * time.Second
	// recovered is how long a join and a leave may take after a fault.
	recovered = 30 * time.Second
	// ending is how long after its death a node is evicted.
	ending = 3 * time.Second
	// inForce is how long a written rule may not be in force at nodes with authority.
	inForce = 5 * time.Second
)

// TestPairs: while one fault lasts, another one happens. Each seed chooses other pairs.
func TestPairs(t *testing.T) {
	n, first := 12, seed+runs[t.Name()]
	if testing.Short() {
		n = 1
	}
	randomFor(t)
	possible := slices.DeleteFunc(pairs.All(), func(p pairs.Pair) bool {
		what, _ := p.SplitFault()
		// The kernel can't end a process that waits for a disk. A node with a broken
		// disk takes a while to return.
		return p == pairs.Pair{Fault: "disk-hung:owner", Event: "kill:owner"} || testing.Short() &&
			strings.HasPrefix(what, "disk")
	})
	for _, one := range pairs.Choose(first, n, possible) {
		t.Run(one.String(), func(t *testing.T) { playPair(t, one) })
	}
}

// scene is one run of a pair of faults.
type scene struct {
	*fleet
	pair pairs.Pair

	owner, standby *node // of a subject; neither leads at the beginning
	from, to       *node // the ends of a move; nil before it
	broken         *node // the node with the broken disk
	left           *node
	mend           func()
}

func playPair(t *testing.T, one pairs.Pair) {
	f := emptyFleet(t, pairNodes)
	f.spare()
	f.spare()
	switch what, _ := one.SplitFault(); what {
	case "disk-hung":
		f.disks((*node).ownDisk)
	case "disk-full":
		f.disks((*node).smallDisk)
	}
	t.Cleanup(f.close)
	f.open()
	f.fewest, f.agree = pairNodes-2, time.Minute
	f.run(func(f *fleet, l *load) {
		s := &scene{fleet: f, pair: one, mend: func() {}}
		leader := f.leader()
		for s.owner == nil || s.owner == leader || s.standby == leader {
			s.owner, s.standby = f.ownerAndStandby(l)
		}
		defer func() { s.mend() }()
		s.breaks()
		if testing.Short() || f.random.IntN(2) == 0 {
			f.pass(f.between(0, 4*time.Second))
		} else {
			f.pass(lastingFault)
			s.owned("one fault")
		}
		s.happens()
		s.lives()
	})
}

func (s *scene) role(name string) *node {
	switch name {
	case "leader":
		return s.leader()
	case "owner", "follower":
		return s.owner
	case "standby":
		return s.standby
	case "from":
		return s.from
	case "to":
		return s.to
	}
	panic("no such role: " + name)
}

// breaks starts the lasting fault.
func (s *scene) breaks() {
	what, where := s.pair.SplitFault()
	if strings.HasPrefix(what, "disk") {
		s.breaksDisk(what, s.role(where))
		return
	}
	first, second, _ := strings.Cut(where, "-")
	if second == "to" {
		s.moves(s.owner)
	}
	s.breaksLink(what, s.role(first), s.role(second))
}

func (s *scene) breaksLink(what string, a, b *node) {
	at := boottime()
	if what != "link-in" {
		b.ignore(a.host)
	}
	if what != "link-out" {
		a.ignore(b.host)
	}
	s.net.apply()
	s.t.Logf("%s: %s: %s and %s", clockTime(), what, a.name, b.name)
	s.fault(apart, a, at)
}

func (s *scene) breaksDisk(what string, n *node) {
	s.broken = n
	leads, at, first := n == s.leader(), boottime(), len(s.faults)
	s.t.Logf("%s: %s: %s (it leads: %v)", clockTime(), what, n.name, leads)
	s.suspect(cutOff, n, at)
	if leads {
		for _, other := range s.started() {
			if other != n {
				s.suspect(cutOff, other, at) // until there is a new leader
			}
		}
	}
	if what == "disk-hung" {
		s.mend = n.freeze()
	} else {
		// The node gives up its ballast, so fill that space, too.
		n.fill()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(300 * time.Millisecond):
					n.fill()
				}
			}
		}()
		s.mend = func() {
			close(stop)
			<-done
			n.empty()
		}
	}
	if !leads {
		return
	}
	within(s.t, 15*time.Second, "another node leads", func() string {
		for _, other := range s.started() {
			if c, err := other.cluster(); other != n && err == nil && c.View == "connected" &&
				c.Leader != n.name && c.Leader != "" {
				return ""
			}
		}
		return n.name + " is still named"
	})
	for i := first + 1; i < len(s.faults); i++ {
		s.faults[i].to = boottime() + int64(time.Second) // nodes get their authority back one after another
	}
}

// moves makes one more node join. It returns in the middle of the move, or just after it.
func (s *scene) moves(from *node) {
	s.from = from
	epoch := int64(0)
	if c, err := from.cluster(); err == nil {
		epoch = c.Epoch
	}
	s.to = s.joins()
	within(s.t, recovered, "the ring moves", func() string {
		c, err := from.cluster()
		if err != nil || c.Epoch == epoch {
			return fmt.Sprintf("%+v %v", c, err)
		}
		return ""
	})
	s.pass(s.between(0, 100*time.Millisecond)) // about as long as a move takes
}

// joins starts a spare node.
func (s *scene) joins() *node {
	for _, n := range s.nodes {
		if n.spare && n.state.Load() == 0 {
			n.up()
			s.t.Logf("%s: %s joins", clockTime(), n.name)
			return n
		}
	}
	s.t.Fatal("no spare node")
	return nil
}

// healthy returns a random live node whose disk works.
func (s *scene) healthy() *node {
	for {
		if n := s.any(); n.is() == live && n != s.broken && !n.spare {
			return n
		}
	}
}

// alone records that a node goes down while the node with the broken disk,
// which may be its standby, can't replace it.
func (s *scene) alone(kind faultKind, n *node) {
	if s.broken != nil {
		s.suspect(kind, n, boottime())
	}
}

// happens performs the second fault, or an ordinary operation.
func (s *scene) happens() {
	switch event, role := s.pair.SplitEvent(); event {
	case "kill":
		if s.to == nil && (role == "from" || role == "to") {
			s.moves(s.healthy())
		}
		victim := s.role(role)
		s.alone(together, victim) // there may be no copy since the disk broke
		if s.to != nil {
			s.suspect(neither, victim, boottime()) // the partitions it got may have no standby yet
		}
		s.kill(victim)
	case "restart":
		n := s.owner
		if n == s.broken {
			n = s.standby
		}
		s.t.Logf("%s: %s restarts", clockTime(), n.name)
		s.alone(neither, n)
		n.stop()
		n.up()
	}
}

// lives checks that the cluster still works during the fault: a rule is
// written, a node joins, and one leaves. If the second event is one of these,
// it comes first.
func (s *scene) lives() {
	if what, _ := s.pair.SplitEvent(); what == "kill" {
		s.pass(ending) // until then, a standby that leaves would be a second absent node
	}
	at := time.Now()
	var joins, leaves *node
	kinds := []string{"write", "join", "leave"}
	s.random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	if i := slices.Index(kinds, s.pair.Event); i >= 0 {
		kinds[0], kinds[i] = kinds[i], kinds[0]
	}
	for _, kind := range kinds {
		switch kind {
		case "write":
			s.writes(at.Add(recovered), 1)
		case "join":
			joins = s.joins()
		case "leave":
			leaves = s.healthy()
			s.t.Logf("%s: %s is stopped", clockTime(), leaves.name)
			s.alone(neither, leaves)
			leaves.stop()
			// a third voter must not be absent for long
			if event, _ := s.pair.SplitEvent(); event != "kill" || s.broken == nil {
				s.inRing(leaves, false, time.Until(at.Add(recovered)))
			}
			leaves.up()
		}
	}
	s.inRing(joins, true, time.Until(at.Add(recovered)))
	s.inRing(leaves, true, recovered)
	s.pass(time.Until(at.Add(lastingFault)))
	s.owned("both")
}

// inRing waits until all connected nodes report that n is in the ring and live, or that it is not.
func (s *scene) inRing(n *node, want bool, d time.Duration) {
	s.t.Helper()
	within(s.t, d, fmt.Sprintf("%s in the ring: %v", n.name, want), func() string {
		if want && n.is() != live {
			return "it is not ready"
		}
		asked := 0
		for _, other := range s.started() {
			c, err := other.cluster()
			if other.is() != live || err != nil || c.View != "connected" {
				continue
			}
			asked++
			in := false
			for _, m := range c.Members {
				in = in || m.Name == n.name && m.InRing
			}
			if in != want {
				return other.name + " says so not"
			}
		}
		if asked == 0 {
			return "nobody is connected"
		}
		return ""
	})
}

// writes writes rules, and checks that all connected nodes use them in time.
func (s *scene) writes(end time.Time, number int) {
	s.t.Helper()
	var version int64
	within(s.t, time.Until(end), "a rule is written", func() string {
		n := s.healthy()
		status, _, text, err := n.callFor(5*time.Second, "PUT", 8081, "/v1/rules", rulesText(number, s.rules), nil)
		if err != nil || status != 200 {
			return fmt.Sprint(status, text, err)
		}
		c, err := n.cluster()
		if version = c.RulesVersion; err != nil {
			return err.Error()
		}
		return ""
	})
	s.t.Logf("%s: version %d is written", clockTime(), version)
	within(s.t, inForce, fmt.Sprintf("version %d is in force", version), func() string {
		for _, n := range s.started() {
			if c, err := n.cluster(); n.is() == live && err == nil && c.View == "connected" &&
				c.RulesVersion < version {
				return fmt.Sprintf("%s goes by version %d", n.name, c.RulesVersion)
			}
		}
		return ""
	})
}

// owned fails unless subjects all over the ring are decided by their owners.
func (s *scene) owned(when string) {
	s.t.Helper()
	n := s.healthy()
	within(s.t, 3*time.Second, when+": every partition has an owner", func() string {
		for i := range 300 {
			body := fmt.Sprintf(`{"rule": "number", "key": "192.0.2.%d"}`, i)
			status, by, text, err := post(n.client, "http://"+n.ip+":8080/v1/check", body)
			if err != nil || status != 200 || by == "standby" || by == "fallback" {
				return fmt.Sprintf("subject %d is decided by %s: %d %s %v", i, by, status, text, err)
			}
		}
		return ""
	})
}
