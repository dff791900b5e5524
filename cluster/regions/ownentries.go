package regions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

const (
	// pollInterval is the time between two polls of an entry node of this region.
	// urgentPollInterval replaces it while a region can't be reached.
	pollInterval       = time.Second
	urgentPollInterval = 500 * time.Millisecond
	pollTimeout        = 500 * time.Millisecond // bounds the wait for one report
	// pollAllInterval is the time after which an entry node that reaches all
	// regions polls the other entry nodes of its region again. The addresses in
	// their reports keep the WAN pool in one piece.
	pollAllInterval = 10 * time.Second
	// freshFor is how long a report about reachability is trusted.
	freshFor = 3 * time.Second
)

// reports are the last reports of this region's entry nodes, newest first; at
// most maxOwnEntries. The list is immutable.
type reports []entryReport

// entryReport is the reply to MethodRegions: what the called node knows first-hand.
type entryReport struct {
	IsEntryNode bool     `json:"entry"`     // the node is an entry node
	Regions     []Region `json:"regions"`   // by name; at most maxRegions
	Addresses   []string `json:"addresses"` // gossip addresses of entry nodes; at most maxAddresses

	from ring.NodeID
	at   time.Time
}

// reaching returns the entry nodes of this region that recently reported the
// given region as reachable.
func (rs reports) reaching(region string) (entries []ring.NodeID) {
	for _, report := range rs {
		isReported := slices.ContainsFunc(report.Regions,
			func(r Region) bool { return r.Name == region && r.Reachable })
		if isReported && time.Since(report.at) < freshFor {
			entries = append(entries, report.from)
		}
	}
	return entries
}

// regions returns every region in the latest report, and in those at most
// freshFor older, sorted by name.
func (rs reports) regions() []Region {
	regions := make(map[string]Region)
	for _, report := range slices.Backward(rs) { // newer reports overwrite older ones
		if rs[0].at.Sub(report.at) > freshFor {
			continue
		}
		for _, r := range report.Regions {
			regions[r.Name] = r
		}
	}
	return slices.SortedFunc(maps.Values(regions), byName)
}

func byName(a, b Region) int { return cmp.Compare(a.Name, b.Name) }

// withReport returns rs with another report in front. A report from a node that
// is not an entry node only removes that node's previous report.
func (rs reports) withReport(report entryReport) reports {
	var all reports
	if report.IsEntryNode {
		all = append(all, report)
	}
	for _, other := range rs {
		if other.from != report.from && len(all) < maxOwnEntries {
			all = append(all, other)
		}
	}
	return all
}

// isReachableViaOwnEntry reports whether this node can reach the region through
// an entry node of its own region.
func (p *Pool) isReachableViaOwnEntry(rs reports, region string) bool {
	return slices.ContainsFunc(rs.reaching(region), p.config.Peers.Reachable)
}

// runPolls is the loop that polls the entry nodes of this region.
func (p *Pool) runPolls() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time // when all of them were last polled

	for {
		select {
		case <-p.ctx.Done():
			return
		case <-timer.C:
		case <-p.pollNow:
			last = time.Time{}
		}

		all := p.view.Load().isEntryNode && time.Since(last) > pollAllInterval
		if all {
			last = time.Now()
		}

		p.pollOwnEntries(all)
		p.signalChange()

		pause := pollInterval
		if !p.allReachable() {
			pause = urgentPollInterval
		}
		timer.Reset(pause)
	}
}

// allReachable reports whether every known region can be reached.
func (p *Pool) allReachable() bool {
	return !slices.ContainsFunc(p.Regions(), func(r Region) bool { return !r.Reachable })
}

// pollOwnEntries polls up to maxOwnEntries entry nodes, until one has answered
// and all regions can be reached. If all is true, it does not stop before.
func (p *Pool) pollOwnEntries(all bool) {
	p.mu.Lock()
	find, last := p.ownEntryNodes, p.lastOwnEntry
	p.mu.Unlock()

	entries := slices.DeleteFunc(slices.Clone(find()), func(id ring.NodeID) bool { return id == p.config.Self.ID })
	rand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] }) // spreads the load
	if i := slices.Index(entries, last); i > 0 {
		entries[0], entries[i] = entries[i], entries[0]
	}

	// An entry node knows the other regions itself, and needs no report.
	answered := p.view.Load().isEntryNode
	for _, id := range entries[:min(len(entries), maxOwnEntries)] {
		if !all && answered && p.allReachable() {
			return
		}
		answered = p.pollOwnEntry(id) || answered
	}
}

// pollOwnEntry polls one node and reports whether it answered as an entry node.
func (p *Pool) pollOwnEntry(id ring.NodeID) bool {
	ctx, cancel := context.WithTimeout(p.ctx, pollTimeout)
	defer cancel()

	sent := time.Now()
	reply, err := p.config.Peers.Call(ctx, id, MethodRegions, nil)
	if err != nil {
		return false
	}

	report, err := parseReport(reply)
	if err != nil {
		p.log.Debug("malformed answer about regions from an entry node", "node", id, "error", err)
		return false
	}

	// The report gets the time of the question: a slow reply must not be trusted
	// for longer.
	report.from = id
	report.at = sent
	report.Regions = slices.DeleteFunc(report.Regions, func(r Region) bool { return r.Name == p.config.Self.Region })

	// Only runPolls stores reports, so none is lost between Load and Store.
	updated := (*p.reports.Load()).withReport(report)
	p.reports.Store(&updated)

	if report.IsEntryNode {
		p.mu.Lock()
		p.learnedAddresses, p.lastOwnEntry = report.Addresses, id
		p.mu.Unlock()
	}
	return report.IsEntryNode
}

// serveRegions replies with what this node knows itself, without any reports.
func (p *Pool) serveRegions(c *peer.Call) {
	v := p.view.Load()
	report := entryReport{IsEntryNode: v.isEntryNode, Addresses: v.addresses}
	for _, r := range v.regions {
		report.Regions = append(report.Regions, p.describe(r))
	}
	b, _ := json.Marshal(report) // texts, numbers and flags: no error is possible
	c.Reply(b)
}

// parseReport decodes and checks a reply of serveRegions.
func parseReport(b []byte) (report entryReport, err error) {
	if err := json.Unmarshal(b, &report); err != nil {
		return entryReport{}, fmt.Errorf("%w: %w", errMessage, err)
	}

	bad := len(report.Regions) > maxRegions || len(report.Addresses) > maxAddresses ||
		!slices.IsSortedFunc(report.Regions, byName) ||
		slices.ContainsFunc(report.Addresses, func(s string) bool { return len(s) > maxAddressLen }) ||
		slices.ContainsFunc(report.Regions, func(r Region) bool {
			return len(r.Name) > maxRegionLen || len(r.Follows) > maxRegionLen ||
				len(r.Address) > maxAddressLen || r.Members < 0 || r.Members > maxMembers
		})

	if bad {
		return entryReport{}, errMessage
	}
	return report, nil
}

// maxAddressLen bounds an address, in bytes: IPv6 with zone and port fits.
const maxAddressLen = 100
