package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/ring"
)

const (
	chronicleInterval = 500 * time.Millisecond
	// lostAfter is how long contact must be missing before the log says so: longer
	// than an election takes.
	lostAfter = 2 * time.Second
	// leaderlessAfter is how long authority must be missing, although a majority
	// seems to be there, before the log says so. Gossip needs less time to notice
	// that the majority is gone.
	leaderlessAfter = 10 * time.Second
)

// Values of chronicle.lost.
const (
	noMajority = "no majority"
	noLeader   = "no leader"
)

// chronicle logs what an operator would ask about a cluster afterwards: who
// led, when no majority was left, what moved, and which rules came into force.
// Gossip logs what single members did. Only writeChronicle uses it.
type chronicle struct {
	*core
	tracker *nodeTracker
	led     bool

	lastAuthorityAt time.Time // the last look at which this node had authority, or had never had any
	lost            string    // what was logged as missing; empty if nothing is

	epoch       int64       // of the last ring seen
	ring        *ring.Table // the last one seen; nil if none was
	moveBegan   time.Time   // when that ring was first seen
	movingCount int         // how many partitions move, or have moved, to that ring
	isMoving    bool        // they still move
	moveLogged  bool        // the log says that they move

	rules       int64           // the version last logged; 0: none yet
	sharedNames map[string]bool // names that the log says several living nodes have
}

// writeChronicle is the loop that keeps the chronicle.
func (c *Cluster) writeChronicle() {
	ch := chronicle{core: c.core, tracker: c.tracker, lastAuthorityAt: time.Now()}
	for range tick.Every(c.ctx.Done(), chronicleInterval) {
		s := c.State()
		ch.logLead()
		ch.logContact()
		ch.logMove(s)
		ch.logRules(s)
		ch.logSharedNames()
	}
}

func (ch *chronicle) logLead() {
	leads := ch.leads()
	if leads && !ch.led && len(ch.voterIDs()) > 1 { // the only voter always leads
		ch.config.Logger.Info(ch.config.Self.Name + " leads")
	}
	ch.led = leads
}

// logContact logs when this node has lost contact with a majority, or just its
// authority, and when it has authority again.
func (ch *chronicle) logContact() {
	if ch.Authority() || !ch.holder.EverValid() {
		if ch.lost != "" {
			ch.config.Logger.Info("this node decides as an owner again, and rules can be written", "was", ch.lost)
		}
		ch.lost = ""
		ch.lastAuthorityAt = time.Now()
		return
	}
	if ch.leavingRing.Load() || ch.StuckError() != nil || ch.tracker.removed.Load() {
		return // the log has said so
	}

	missing := time.Since(ch.lastAuthorityAt)
	switch {
	case ch.lost != noMajority && missing >= lostAfter && !ch.reachesMajority():
		ch.lost = noMajority
		ch.config.Logger.Warn(fmt.Sprintf(
			"no majority: %s. Rules can't be written; this node allows only its share of each limit", ch.missingVoters()))
	case ch.lost == "" && missing >= leaderlessAfter:
		ch.lost = noLeader
		ch.config.Logger.Warn("no leader has granted this node authority: " +
			"it allows only its share of what it owns, and asks other owners for the rest")
	}
}

// missingVoters names the voters that can't be reached.
func (ch *chronicle) missingVoters() string {
	s := ch.StateInUse()
	alive := ch.aliveNodes()
	var names []string
	for _, id := range ch.voterIDs() {
		if id != ch.config.Self.ID && !alive[id] && !ch.config.Peers.Reachable(id) {
			names = append(names, cmp.Or(s.Members[id].Name, id.String()))
		}
	}

	slices.Sort(names)
	switch len(names) {
	case 0:
		return "the others don't answer"
	case 1:
		return names[0] + " doesn't answer"
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last] + " don't answer"
}

// logMove logs moves, on the leader. It logs the end of each move, but the
// beginning only of a move that still goes on at the next look.
func (ch *chronicle) logMove(s *agreement.State) {
	sawRing := ch.ring != nil
	wasMoving := ch.isMoving
	changed := ch.followRing(s)
	ch.isMoving = !s.Settled
	if !ch.led || !sawRing {
		return
	}

	log := ch.config.Logger.With("epoch", s.Epoch, "nodes", len(s.To.Members()), "partitions", ch.movingCount)
	switch {
	case ch.isMoving && !changed && !ch.moveLogged:
		log.Info("partitions move")
		ch.moveLogged = true
	case !ch.isMoving && (changed || wasMoving):
		log.Info("partitions have moved", "took", time.Since(ch.moveBegan).Round(time.Millisecond))
	}
}

// followRing reports whether the ring has changed since the last look. It counts
// what moves on every node, because this node may lead before the move has ended.
func (ch *chronicle) followRing(s *agreement.State) (changed bool) {
	before := ch.ring
	if before == nil {
		before = s.From
	}

	// The end of a node changes the ring and keeps the epoch. It is no move: those
	// who take over have their copies.
	ch.ring = s.To
	if s.Epoch == ch.epoch {
		return false
	}

	ch.epoch = s.Epoch
	ch.moveBegan = time.Now()
	ch.movingCount = movedPartitions(before, s.To)
	ch.moveLogged = false
	return true
}

// movedPartitions counts the partitions that two rings give to different owners.
func movedPartitions(before, now *ring.Table) (n int) {
	for p := range ring.Partitions {
		if before.Owner(p) != now.Owner(p) {
			n++
		}
	}
	return n
}

// logRules logs the version in force if it is not the one of the last look. It
// does not log the first version that it sees.
func (ch *chronicle) logRules(s *agreement.State) {
	version := rulesVersion(s)
	if version == 0 || version == ch.rules {
		return
	}

	if ch.rules != 0 {
		last := s.History.Versions()[0]
		args := []any{"version", version, "by", last.By}
		if last.Message != "" {
			args = append(args, "message", last.Message)
		}
		ch.config.Logger.Info("rules are in force", args...)
	}

	ch.rules = version
}

// logSharedNames logs each name that several living nodes have: once, until only one
// of them has it.
func (ch *chronicle) logSharedNames() {
	living := map[string]int{}
	for _, m := range ch.gossip.Load().Members() {
		if m.State == gossip.Alive {
			living[m.Name]++
		}
	}

	shared := map[string]bool{}
	for name, n := range living {
		if n < 2 {
			continue
		}
		shared[name] = true
		if !ch.sharedNames[name] {
			ch.config.Logger.Warn("several living nodes have one name: give each its own, with --name; until then rlnode remove needs the ID",
				"name", name, "nodes", n)
		}
	}
	ch.sharedNames = shared
}
