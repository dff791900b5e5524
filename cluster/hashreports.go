package cluster

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/ring"
)

// hashReports collects the state hashes that nodes report with requests for
// authority. Nodes send these to the leader. When the lead moves on, the reports
// stay: nodes that have applied the same entries have the same state under
// any leader.
type hashReports struct {
	// mu guards the fields below.
	mu sync.Mutex
	// byIndex holds the hashes of the last keptHashes indices. They are from nodes
	// in Raft's configuration only: see refuseDiverged.
	byIndex   map[uint64]*indexHashes
	lastAlarm time.Time // when the last alarm was logged: nodes differed, and no hash had a majority; zero if never
}

// indexHashes are the hashes that nodes have reported for one index.
type indexHashes struct {
	byNode map[ring.NodeID]agreement.Hash
	since  time.Time // of the first report
}

const (
	// keptHashes is the number of indices whose hashes are kept.
	keptHashes = 4
	// hashPatience is how long after the first report of an index the leader
	// assumes that all live nodes have reported that index. A node that has applied
	// nothing for that long reports the hash of its current state, so that
	// differences are found even while nothing is written.
	hashPatience = 2 * time.Second
)

// hashToReport returns the hash to report with a request for authority.
// Normally, it is the hash as of the last index at which all nodes compute one.
// Once the state has not changed for hashPatience, it is the hash of the
// current state.
func (nt *nodeTracker) hashToReport(s *agreement.State) agreement.HashAt {
	nt.mu.Lock()
	defer nt.mu.Unlock()

	if s.Index != nt.idleIndex {
		nt.idleIndex = s.Index
		nt.idleSince = time.Now()
	}
	if time.Since(nt.idleSince) < hashPatience {
		return s.ComparedHash
	}
	// A HashAt is of the state before the entry at its index.
	return agreement.HashAt{Index: s.Index + 1, Hash: s.Hash}
}

// isSplit reports whether the nodes differ and no hash has a majority of all members.
func (ih *indexHashes) isSplit(members int) bool {
	votes, most := countHashes(ih.byNode)
	return len(votes) > 1 && 2*votes[most] <= members
}

// add records a node's report. differs means that the node differs from a
// majority of all members. split means that the nodes differ without a majority
// at an index that all live nodes have had time to report.
func (h *hashReports) add(id ring.NodeID, c agreement.HashAt, members int) (differs, split bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.byIndex == nil {
		h.byIndex = map[uint64]*indexHashes{}
	}

	at := h.byIndex[c.Index]
	if at == nil {
		at = &indexHashes{map[ring.NodeID]agreement.Hash{}, time.Now()}
		h.byIndex[c.Index] = at
		for len(h.byIndex) > keptHashes {
			oldest := slices.Min(slices.Collect(maps.Keys(h.byIndex)))
			// This is the last look at the oldest index: it gets no more reports.
			split = split || h.byIndex[oldest].isSplit(members)
			delete(h.byIndex, oldest)
		}
	}

	at.byNode[id] = c.Hash
	split = split || time.Since(at.since) >= hashPatience && at.isSplit(members)
	votes, most := countHashes(at.byNode)
	return 2*votes[most] > members && most != c.Hash, split
}

// countHashes counts the nodes for each hash, and returns a hash with the highest count.
func countHashes(byNode map[ring.NodeID]agreement.Hash) (votes map[agreement.Hash]int, commonest agreement.Hash) {
	votes = map[agreement.Hash]int{}
	for _, hash := range byNode {
		votes[hash]++
		if votes[hash] >= votes[commonest] {
			commonest = hash
		}
	}
	return votes, commonest
}

// refuseDiverged checks the hash in a request for authority, on the leader. If
// the node differs from a majority, it returns true and the reply. Without a
// majority, the leader can't know which side is right, so it only raises an
// alarm.
func (nt *nodeTracker) refuseDiverged(r authority.Request) (authority.Reply, bool) {
	conf, _ := nt.configuration()

	_, member := findServer(conf, raftio.ServerID(r.Node))
	if !member || r.StateHash.Index == 0 || r.Stuck {
		return authority.Reply{}, false
	}
	differs, split := nt.hashReports.add(r.Node, r.StateHash, len(conf.Servers))
	if split {
		nt.alarmSplit(r)
	}
	if !differs {
		return authority.Reply{}, false
	}
	return authority.Reply{Differs: true,
		Reason: "the node's state differs from the majority's after the same entries"}, true
}

// alarmInterval is the minimum interval between two log lines about differing nodes.
const alarmInterval = 30 * time.Second

// alarmSplit logs that nodes differ without a majority.
func (nt *nodeTracker) alarmSplit(r authority.Request) {
	h := &nt.hashReports
	h.mu.Lock()
	due := time.Since(h.lastAlarm) >= alarmInterval
	if due {
		h.lastAlarm = time.Now()
	}
	h.mu.Unlock()

	if due {
		nt.config.Logger.Error("nodes have reached different states after the same entries, and no side has a majority: all nodes "+
			"continue; compare the output of rlnode rules and rlnode members at each", "node", r.Node, "entry", r.StateHash.Index)
	}
}

// Split reports whether nodes have recently reported different states to this
// leader, without a majority for any of them.
func (nt *nodeTracker) Split() bool {
	h := &nt.hashReports
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.lastAlarm.IsZero() && time.Since(h.lastAlarm) < 2*alarmInterval
}
