package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// Reasons to refuse a member.
var (
	ErrOtherCluster = errors.New("belongs to another cluster")
	ErrOtherRegion  = errors.New("belongs to another region")
	ErrSameRegion   = errors.New("two clusters use the name of one region: one of them needs another --region")
	ErrSameCluster  = errors.New("a part of this cluster uses the name of another region: a data directory was copied, or a --region changed")
	ErrTooMany      = errors.New("there are too many members")
)

// twinMemory is how long a report of another process with the same node ID
// counts. Each sync with a member repeats the report.
const twinMemory = time.Minute

// delegates implements memberlist's callbacks. memberlist calls most of them with
// its lock of members held, so they must neither block nor call memberlist:
// they copy their arguments into the table, log, and signal.
type delegates struct{ *Gossip }

// parseMember returns the Member that memberlist's node describes.
func parseMember(n *memberlist.Node) (Member, error) {
	id, err := ring.ParseNodeID(n.Name)
	if err != nil || id.String() != n.Name || id.IsZero() {
		return Member{}, fmt.Errorf("%w: the name is not a node ID", ErrMetadata)
	}

	ip, ok := netip.AddrFromSlice(n.Addr)
	ip = ip.Unmap()
	if !ok || !(ip.IsGlobalUnicast() || ip.IsLoopback() || ip.IsLinkLocalUnicast()) || n.Port == 0 {
		return Member{}, fmt.Errorf("%w: the address is not a node's IP, or has no port", ErrMetadata)
	}

	m, err := parseMetadata(n.Meta)
	if err != nil {
		return Member{}, err
	}

	m.ID = id
	m.Address = ip.String()
	m.GossipPort = int(n.Port)
	return m, nil
}

// checkMember returns an error with the reason why m can't be in one pool with
// self, or nil if it can.
func (c *Config) checkMember(self, m Member) error {
	none := [16]byte{}
	if c.WAN {
		switch {
		case m.Cluster == none || self.Cluster == none: // not known yet
		case m.Region == self.Region && m.Cluster != self.Cluster:
			return fmt.Errorf("%w: %q is the region of cluster %x and of this one, %x",
				ErrSameRegion, m.Region, m.Cluster, self.Cluster)
		case m.Region != self.Region && m.Cluster == self.Cluster:
			return fmt.Errorf("%w: it is in %q, but this node is in %q", ErrSameCluster, m.Region, self.Region)
		}
		return nil
	}

	switch {
	case m.Region != self.Region:
		return fmt.Errorf("%w: %q, but this node is in %q", ErrOtherRegion, m.Region, self.Region)
	case m.Cluster != self.Cluster && m.Cluster != none && self.Cluster != none:
		return fmt.Errorf("%w: %x, but this node belongs to %x", ErrOtherCluster, m.Cluster, self.Cluster)
	}
	return nil
}

// admit parses a node, and returns an error if it may not be a member.
func (g *Gossip) admit(n *memberlist.Node) (Member, error) {
	m, err := parseMember(n)
	if err != nil {
		return m, err
	}

	g.mu.Lock()
	self := g.self
	g.mu.Unlock()

	err = g.config.checkMember(self, m)
	if err == nil && g.config.Accept != nil {
		err = g.config.Accept(m)
	}
	return m, err
}

// logRefusal logs that this node refuses n. The caller must hold g.mu.
func (g *Gossip) logRefusal(n *memberlist.Node, m Member, err error) {
	text := "a node is kept out of the cluster"
	if g.config.WAN {
		text = "a node is kept out of the pool of regions"
	}

	level := slog.LevelWarn
	if errors.Is(err, ErrSameRegion) || errors.Is(err, ErrSameCluster) {
		level = slog.LevelError // the regions can't work together until an operator changes a name
	}

	g.logOnce(eventKey{text: text, id: m.ID, boot: m.Boot, name: n.Name}, level,
		"id", n.Name, "name", m.Name, "address", n.Address(), "reason", err)
}

// NotifyAlive decides whether memberlist handles a message that a node is
// alive. It runs before memberlist checks whether the message is new.
func (e delegates) NotifyAlive(n *memberlist.Node) error {
	if n.Name == e.name {
		return nil // this node, or another one with its ID: see NotifyConflict
	}

	m, err := e.admit(n)
	e.mu.Lock()
	defer e.mu.Unlock()

	known := e.table.entries[m.ID]
	if err == nil && known == nil && (e.table.isFull() || !e.table.admitNewcomer(time.Now())) {
		err = ErrTooMany
	}

	if err != nil {
		// The node may have been a member until it, or this node, joined another
		// cluster. If a process at another address merely claims a member's ID, the
		// member stays.
		if known != nil && known.State == Alive && known.gossipAddress() == m.gossipAddress() {
			e.table.exclude(known)
			wake.Signal(e.changed)
		}
		e.logRefusal(n, m, err)
		return err
	}

	// If the message that the node is dead has overtaken this one, memberlist drops
	// this one as stale. So the departure is recorded here.
	if m.State == Left {
		e.handleDeparture(departure{id: m.ID, boot: m.Boot})
	}
	return nil
}

// NotifyMerge decides whether to merge the list of a node that joins this one,
// or that this one joins; it runs at both ends. It refuses a list without an
// acceptable live member. From a mixed list, NotifyAlive admits or refuses each
// member.
func (e delegates) NotifyMerge(peers []*memberlist.Node) error {
	var refused error
	for _, n := range peers {
		if n.Name == e.name {
			e.recordTwin(n)
			continue
		}

		if n.State != memberlist.StateAlive {
			continue
		}

		m, err := e.admit(n)
		if err == nil {
			return nil
		}

		e.mu.Lock()
		e.logRefusal(n, m, err)
		e.mu.Unlock()
		refused = err
	}
	return refused
}

// NotifyConflict is called when a process at another address claims a live
// member's ID. memberlist keeps the process that was there first.
func (e delegates) NotifyConflict(existing, other *memberlist.Node) {
	if existing.Name == e.name {
		e.recordTwin(other)
		return
	}

	m, _ := parseMember(other) // an error is harmless: ID and boot only identify the log line
	e.mu.Lock()
	defer e.mu.Unlock()

	if !e.secondClaims.note(other.Name, time.Now(), e.config.twinPatience()) {
		return
	}

	e.logOnce(eventKey{text: "two processes have the same node ID, and both answer: a copied data directory? The one that was there " +
		"first stays, the other one is refused", id: m.ID, boot: m.Boot, name: other.Name},
		slog.LevelError, "name", m.Name, "id", other.Name, "stays", existing.Address(), "refused", other.Address())
}

// secondClaims holds when each node ID was first claimed by a second process. A
// node that restarts at another address makes such a claim until the others
// notice that its old process is gone. If both processes live, the claims go on.
type secondClaims map[string]time.Time

const (
	// twinProbes is how many intervals of probes a claim must go on: more than
	// gossip takes to notice that a process is gone.
	twinProbes = 20
	maxTwins   = 256 // claims remembered; beyond that, all are forgotten
)

// twinPatience returns how long a claim must go on: 10 s, and 40 s in a WAN pool.
func (c *Config) twinPatience() time.Duration { return twinProbes * c.ProbeInterval }

// note records a claim. lasts means that it has gone on for so long that both
// processes live. A claim that began more than twinMemory ago begins anew.
func (claims secondClaims) note(id string, now time.Time, patience time.Duration) (lasts bool) {
	since, known := claims[id]
	if known && now.Sub(since) <= twinMemory {
		return now.Sub(since) >= patience
	}

	if len(claims) >= maxTwins {
		clear(claims)
	}
	claims[id] = now
	return false
}

// recordTwin records that another process, at another address, has or had this node's ID.
func (g *Gossip) recordTwin(n *memberlist.Node) {
	address := n.Address()
	g.mu.Lock()
	defer g.mu.Unlock()

	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok || netip.AddrPortFrom(ip.Unmap(), n.Port) == g.self.gossipAddress() {
		return // this process, or its earlier run at the same address
	}

	g.lastTwin = time.Now()
	if !g.secondClaims.note(n.Name, g.lastTwin, g.config.twinPatience()) {
		return
	}

	g.logOnce(eventKey{text: "another process has this node's ID: a copied data directory? The others refuse the one that came later",
		name: address}, slog.LevelError, "id", n.Name, "other", address, "this", g.self.gossipAddress())
}

// NotifyJoin is called after a node that was unknown or not alive is reported
// alive. memberlist calls it for this node, too, before Create returns.
func (e delegates) NotifyJoin(n *memberlist.Node) { e.put(n) }

// NotifyUpdate is called after a living member's metadata changed.
func (e delegates) NotifyUpdate(n *memberlist.Node) { e.put(n) }

func (e delegates) put(n *memberlist.Node) {
	if n.Name == e.name {
		return
	}

	m, err := parseMember(n)
	if err != nil {
		return // NotifyAlive has logged it
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	var before *Member
	if known := e.table.entries[m.ID]; known != nil {
		copied := known.Member
		before = &copied
	}

	e.table.put(m)
	delete(e.remembered, m.gossipAddress())
	// This node may have joined another cluster since NotifyAlive.
	if e.config.checkMember(e.self, m) != nil {
		e.table.exclude(e.table.entries[m.ID])
	}

	e.logChange(before, &m)
	wake.Signal(e.changed)
}

// logChange logs how a member has changed. before is nil if the member was
// unknown. The caller must hold g.mu.
func (g *Gossip) logChange(before, m *Member) {
	switch {
	case before != nil && m.State == Alive && before.gossipAddress() != m.gossipAddress():
		delete(g.secondClaims, m.ID.String())
		g.logMember(m, "has a new address", "before", before.gossipAddress())

	case before != nil && before.State == m.State:
		if m.State == Alive && before.Boot != m.Boot {
			g.logMember(m, "has restarted")
		}

	case m.State == Failed:
		g.logMember(m, "has failed")
	case m.State == Left:
		g.logMember(m, "has left")
	case before == nil && slices.Contains(g.config.Remembered, m.gossipAddress().String()):
		// This node meets the member again after its own restart, which is no news.
	case before == nil:
		g.logMember(m, "has joined")
	default:
		g.logMember(m, "is back")
	}
}

// logMember logs what a member did. The caller must hold g.mu.
func (g *Gossip) logMember(m *Member, did string, args ...any) {
	level := slog.LevelInfo
	if g.config.WAN {
		if m.Region == g.self.Region { // the region's own gossip logs it, too
			level = slog.LevelDebug
		}
		args = append(args, "region", m.Region)
	}
	g.config.Logger.Log(context.Background(), level, m.Name+" "+did,
		append([]any{"id", m.ID, "address", m.gossipAddress()}, args...)...)
}

// NotifyLeave is called when a member has left or failed. memberlist doesn't
// say which, so a node that leaves first announces it in its metadata.
func (e delegates) NotifyLeave(n *memberlist.Node) {
	id, err := ring.ParseNodeID(n.Name)
	if err != nil || n.Name == e.name {
		return
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	m, failed := e.table.markGone(id)
	if failed {
		e.logMember(&m, "has failed")
	}
	wake.Signal(e.changed)
}

// NodeMeta returns this node's metadata for its announcements.
func (e delegates) NodeMeta(int) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return bytes.Clone(e.metadata)
}
