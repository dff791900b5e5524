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
	// askInterval is how often one entry node of this region is asked; askSoon is used instead while a region can't be
	// reached.
	askInterval = time.Second
	askSoon     = 500 * time.Millisecond
	askTime     = 500 * time.Millisecond // bounds the wait for one answer
	// askAll is how often an entry node asks the others although it reaches all regions, so that they stay one pool.
	askAll = 10 * time.Second
	// fresh is how long an answer about reachability is trusted.
	fresh = 3 * time.Second
)

// hearsay is what entry nodes of this region have said, newest first; at most mostMates answers. It is immutable.
type hearsay []answer

// answer is the reply to MethodRegions: what an entry node knows first-hand.
type answer struct {
	Entry     bool     `json:"entry"`     // it is an entry node
	Regions   []Region `json:"regions"`   // by name; at most mostRegions
	Addresses []string `json:"addresses"` // where entry nodes gossip; at most mostAddresses

	mate ring.NodeID
	at   time.Time
}

// reaching returns the entry nodes of this region that recently said that they reach the given region.
func (h hearsay) reaching(region string) (mates []ring.NodeID) {
	for _, a := range h {
		says := slices.ContainsFunc(a.Regions, func(r Region) bool { return r.Name == region && r.Reachable })
		if says && time.Since(a.at) < fresh {
			mates = append(mates, a.mate)
		}
	}
	return mates
}

// regions returns every region named at about the time of the latest answer, sorted by name.
func (h hearsay) regions() []Region {
	named := make(map[string]Region)
	for _, a := range slices.Backward(h) { // newer answers overwrite older ones
		if h[0].at.Sub(a.at) > fresh {
			continue
		}
		for _, r := range a.Regions {
			named[r.Name] = r
		}
	}
	return slices.SortedFunc(maps.Values(named), byName)
}

func byName(a, b Region) int { return cmp.Compare(a.Name, b.Name) }

// age returns the age of the newest answer, 0 without any.
func (h hearsay) age() time.Duration {
	if len(h) == 0 {
		return 0
	}
	return time.Since(h[0].at)
}

// with returns h with another answer added. An answer from a node that is not an entry node only removes its previous one.
func (h hearsay) with(a answer) hearsay {
	var all hearsay
	if a.Entry {
		all = append(all, a)
	}
	for _, other := range h {
		if other.mate != a.mate && len(all) < mostMates {
			all = append(all, other)
		}
	}
	return all
}

// viaMate reports whether an entry node of this region can reach the region for this node.
func (p *Pool) viaMate(h hearsay, region string) bool {
	return slices.ContainsFunc(h.reaching(region), p.config.Peers.Reachable)
}

// ask keeps asking the entry nodes of this region.
func (p *Pool) ask() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time // when all of them were last asked
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-timer.C:
		case <-p.asking:
			last = time.Time{}
		}
		whole := p.view.Load().entry && time.Since(last) > askAll
		if whole {
			last = time.Now()
		}
		p.askMates(whole)
		p.notice()
		pause := askInterval
		if !p.content() {
			pause = askSoon
		}
		timer.Reset(pause)
	}
}

// content reports whether every known region can be reached.
func (p *Pool) content() bool {
	return !slices.ContainsFunc(p.Regions(), func(r Region) bool { return !r.Reachable })
}

// askMates asks entry nodes until one has answered and all regions can be reached; with all set, it asks every one.
func (p *Pool) askMates(all bool) {
	p.mu.Lock()
	find, last := p.mates, p.lastMate
	p.mu.Unlock()
	mates := slices.DeleteFunc(slices.Clone(find()), func(id ring.NodeID) bool { return id == p.config.Self.ID })
	rand.Shuffle(len(mates), func(i, j int) { mates[i], mates[j] = mates[j], mates[i] }) // spreads the load
	if i := slices.Index(mates, last); i > 0 {
		mates[0], mates[i] = mates[i], mates[0]
	}
	answered := p.view.Load().entry
	for _, mate := range mates[:min(len(mates), mostMates)] {
		if !all && answered && p.content() {
			return
		}
		answered = p.askMate(mate) || answered
	}
}

// askMate asks one node and reports whether it answered as an entry node.
func (p *Pool) askMate(mate ring.NodeID) bool {
	ctx, cancel := context.WithTimeout(p.ctx, askTime)
	defer cancel()
	sent := time.Now()
	reply, err := p.config.Peers.Call(ctx, mate, MethodRegions, nil)
	if err != nil {
		return false
	}
	a, err := parseAnswer(reply)
	if err != nil {
		p.log.Debug("unreadable answer about regions from an entry node", "node", mate, "error", err)
		return false
	}
	a.mate, a.at = mate, sent
	a.Regions = slices.DeleteFunc(a.Regions, func(r Region) bool { return r.Name == p.config.Self.Region })
	heard := (*p.heard.Load()).with(a)
	p.heard.Store(&heard)
	if a.Entry {
		p.mu.Lock()
		p.learned, p.lastMate = a.Addresses, mate
		p.mu.Unlock()
	}
	return a.Entry
}

// serveRegions answers with what this node knows first-hand; it doesn't repeat hearsay.
func (p *Pool) serveRegions(c *peer.Call) {
	v := p.view.Load()
	a := answer{Entry: v.entry, Addresses: v.addresses}
	for _, r := range v.regions {
		a.Regions = append(a.Regions, p.seen(r))
	}
	b, err := json.Marshal(a)
	if err != nil {
		c.Fail(CodeMessage, err.Error())
		return
	}
	c.Reply(b)
}

// parseAnswer is the inverse of serveRegions.
func parseAnswer(b []byte) (a answer, err error) {
	if err := json.Unmarshal(b, &a); err != nil {
		return answer{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	bad := len(a.Regions) > mostRegions || len(a.Addresses) > mostAddresses || !slices.IsSortedFunc(a.Regions, byName) ||
		slices.ContainsFunc(a.Addresses, func(s string) bool { return len(s) > longestAddress }) ||
		slices.ContainsFunc(a.Regions, func(r Region) bool {
			return len(r.Name) > longestRegion || len(r.Follows) > longestRegion || r.Members < 0 || r.Members > mostMembers
		})
	if bad {
		return answer{}, errMessage
	}
	return a, nil
}

// longestAddress bounds an address: an IPv6 address with zone and port fits.
const longestAddress = 100
