package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// caughtUpMargin is how many entries a node may lag behind and still count as caught up.
	caughtUpMargin = 32
	// nodeReportTTL is how long the report in a node's request for authority stays valid.
	nodeReportTTL = 3 * time.Second
)

// nodeTracker tracks the other nodes: which ones exist, how far each has
// applied entries, and whether their states differ. It asks for authority, and
// answers such requests while this node leads.
type nodeTracker struct {
	*core
	hashReports hashReports
	// nodesBehind lists the nodes that ask for authority but can't be granted it,
	// according to the leader's last answer. It is empty without contact with the
	// leader, and never nil.
	nodesBehind atomic.Pointer[[]ring.NodeID]
	// removed is set once the leader has reported that an operator has removed this process.
	removed atomic.Bool

	// mu guards the fields below.
	mu sync.Mutex
	// lastReports are from requests for authority, while this node leads. The
	// number of known nodes bounds them.
	lastReports map[ring.NodeID]nodeReport
	// removing are the nodes being removed. Each call that removes a node has one
	// mark; the calls that a node makes to leave have one together.
	removing map[ring.NodeID][]*pendingRemoval
	// idleIndex is the last index that this node has applied. It has not changed
	// since idleSince. See hashToReport.
	idleIndex uint64
	idleSince time.Time
}

// pendingRemoval marks a process that an operator removes, or that leaves.
type pendingRemoval struct {
	boot   uint64
	leaves bool // the node itself asks
	forced bool // even if it is alive
	// departure is recorded, so that the node's ID can't come back; nil if the ID
	// can come back.
	departure *agreement.Departure
}

// nodeReport is a node's report with its last request for authority.
type nodeReport struct {
	applied     uint64
	unfitToLead bool // it should not lead: it is stuck, or its store fails
	at          time.Time
}

// isCaughtUp reports whether the node has recently reported that it has applied
// nearly everything and can store more.
func (r nodeReport) isCaughtUp(index uint64) bool {
	return time.Since(r.at) < nodeReportTTL && r.applied+caughtUpMargin >= index && !r.unfitToLead
}

// lastReport returns what a node last reported with a request for authority.
func (nt *nodeTracker) lastReport(id ring.NodeID) nodeReport {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	return nt.lastReports[id]
}
