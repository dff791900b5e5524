package node

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

// historyDir is the folder of the history's files in the data directory.
const historyDir = "history"

// openHistory opens the history of what this node decides.
func (n *Node) openHistory() error {
	config := history.Config{
		Self: n.id, Now: func() int64 { return n.clock.Now().Wall }, Read: n.readCounts,
		Events: n.events, Peers: n.peers, Others: n.reachableNodes, Logger: n.log,
	}
	if n.dir != "" {
		dir := filepath.Join(n.dir, historyDir)
		config.File = func(name string) history.File { return historyFile{persist.NewSmallFile(dir, name), dir} }
		config.HasRoom = func() bool { return persist.HasSpareRoom(n.dir) }
	}
	n.history = history.Open(config)
	n.closeOnRelease(n.history)
	return nil
}

// historyFile is a file of the history, in a folder that is made when it is needed.
type historyFile struct {
	persist.SmallFile
	dir string
}

// Write replaces the file, and makes its folder if it is missing.
func (f historyFile) Write(content []byte) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	return f.SmallFile.Write(content)
}

// reachableNodes returns the other nodes of the ring that answer.
func (n *Node) reachableNodes() []ring.NodeID {
	return slices.DeleteFunc(slices.Clone(n.ring().Members()),
		func(id ring.NodeID) bool { return id == n.id || !n.peers.Reachable(id) })
}

// readCounts returns what this node has counted since its process began.
func (n *Node) readCounts() *history.Reading {
	checks := n.limiter.Checks()
	r := &history.Reading{Total: historyCounts(&checks)}
	for _, d := range n.doorLatencies {
		r.Doors = append(r.Doors, history.Door{Name: d.name, Latency: d.read()})
	}

	stats := n.limiter.Stats()
	for i := range stats {
		s := &stats[i]
		if s.Rule == "" { // checks without a rule; they are in the total
			continue
		}

		rule := history.Rule{Name: s.Rule, Row: history.Row{Counts: historyCounts(&s.Checks), Latency: s.Latency}}
		r.Total.ShadowRefused += rule.ShadowRefused
		r.Rules = append(r.Rules, rule)
	}

	return r
}

// historyCounts adds up checks, however they were decided.
func historyCounts(checks *limiter.Counts) (c history.Counts) {
	sum := func(decision int) (all int64) {
		for _, n := range checks[decision] {
			all += n
		}
		return all
	}
	c.Refused = sum(limiter.DecisionRefused)
	c.ShadowRefused = sum(limiter.DecisionShadowRefused)
	c.Checks = sum(limiter.DecisionAllowed) + c.Refused + c.ShadowRefused
	return c
}
