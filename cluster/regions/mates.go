package regions

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// askInterval is how often an entry node of this region is asked, and askSoon while a region can't be reached.
	askInterval = time.Second
	askSoon     = 500 * time.Millisecond
	askTime     = 500 * time.Millisecond // for one of them to answer
	// askAll is how often an entry node asks the others although it reaches all regions: that they are one pool.
	askAll = 10 * time.Second
	// fresh is how long an answer says what can be reached.
	fresh = 3 * time.Second
)

// hearsay is what entry nodes of this region have said. It does not change.
type hearsay struct{ answers []answer } // newest first; at most mostMates

type answer struct {
	mate    ring.NodeID
	at      time.Time
	entry   bool
	regions []Region // by name
}

// says gives what the mate said of a region.
func (a answer) says(region string) (Region, bool) {
	i, ok := slices.BinarySearchFunc(a.regions, region, func(r Region, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return Region{}, false
	}
	return a.regions[i], true
}

// reaches says whether the mate said, lately, that it reaches a region.
func (h *hearsay) reaches(mate ring.NodeID, region string) bool {
	for _, a := range h.answers {
		if a.mate == mate {
			r, ok := a.says(region)
			return ok && r.Reachable && time.Since(a.at) < fresh
		}
	}
	return false
}

// regions are all that were told of at about the time of the last answer, by name.
func (h *hearsay) regions() []Region {
	named := make(map[string]bool)
	var all []Region
	for _, a := range h.answers {
		if h.answers[0].at.Sub(a.at) > fresh {
			break
		}
		for _, r := range a.regions {
			if !named[r.Name] {
				named[r.Name] = true
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b Region) int { return cmp.Compare(a.Name, b.Name) }

// age is how old the newest answer is.
func (h *hearsay) age() time.Duration {
	if len(h.answers) == 0 {
		return 0
	}
	return time.Since(h.answers[0].at)
}

// with is h with another answer. One of a node that is no entry node only replaces what it said before.
func (h *hearsay) with(a answer) *hearsay {
	var all []answer
	if a.entry {
		all = append(all, a)
	}
	for _, other := range h.answers {
		if other.mate != a.mate && len(all) < mostMates {
			all = append(all, other)
		}
	}
	return &hearsay{answers: all}
}

// viaMate says whether an entry node of this region reaches another one for this node.
func (p *Pool) viaMate(h *hearsay, region string) bool {
	return slices.ContainsFunc(h.answers, func(a answer) bool {
		r, ok := a.says(region)
		return ok && r.Reachable && time.Since(a.at) < fresh && p.config.Peers.Reachable(a.mate)
	})
}

// ask asks entry nodes of this region, again and again.
func (p *Pool) ask() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time // when all were asked
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

// content says whether every region that this node knows of can be reached.
func (p *Pool) content() bool {
	return !slices.ContainsFunc(p.Regions(), func(r Region) bool { return !r.Reachable })
}

// askMates asks until an entry node has answered and all regions can be reached, or really all.
func (p *Pool) askMates(all bool) {
	p.mu.Lock()
	find, last := p.mates, p.lastMate
	p.mu.Unlock()
	mates := slices.DeleteFunc(slices.Clone(find()), func(id ring.NodeID) bool { return id == p.config.Self.ID })
	rand.Shuffle(len(mates), func(i, j int) { mates[i], mates[j] = mates[j], mates[i] }) // that not all ask one
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

// askMate says whether an entry node has answered.
func (p *Pool) askMate(mate ring.NodeID) bool {
	ctx, cancel := context.WithTimeout(p.ctx, askTime)
	defer cancel()
	sent := time.Now()
	reply, err := p.config.Peers.Call(ctx, mate, MethodRegions, nil)
	if err != nil {
		return false
	}
	a, addresses, err := parseSaid(reply)
	if err != nil {
		p.log.Debug("what an entry node says of regions is of no use", "node", mate, "error", err)
		return false
	}
	a.mate, a.at = mate, sent
	a.regions = slices.DeleteFunc(a.regions, func(r Region) bool { return r.Name == p.config.Self.Region })
	p.heard.Store(p.heard.Load().with(a))
	if a.entry {
		p.mu.Lock()
		p.learned, p.lastMate = addresses, mate
		p.mu.Unlock()
	}
	return a.entry
}

// The reply to MethodRegions:
//
//	format 1 | 1: an entry node | number of regions | each: name, follows, 1: reachable, members 2 |
//	number of addresses | each
//
// Texts have their length in a byte before them.
const saidFormat = 1

// said is what this node knows by itself; what others said is not passed on.
func (p *Pool) said() []byte {
	v := p.view.Load()
	b := append(wire.AppendBool([]byte{saidFormat}, v.entry), byte(len(v.regions)))
	for _, r := range v.regions {
		b = wire.AppendShortText(wire.AppendShortText(b, r.name), r.follows)
		b = wire.AppendBool(b, p.direct(r))
		b = binary.BigEndian.AppendUint16(b, uint16(min(r.members, mostMembers)))
	}
	b = append(b, byte(len(v.addresses)))
	for _, a := range v.addresses {
		b = wire.AppendShortText(b, a)
	}
	return b
}

// parseSaid reads such a reply.
func parseSaid(b []byte) (a answer, addresses []string, err error) {
	d := wire.NewDecoder(b)
	if d.Byte() != saidFormat {
		return a, nil, errMessage
	}
	a.entry = d.Bool()
	for range decodeCount(d, mostRegions) {
		one := Region{
			Name: d.ShortText(longestRegion), Follows: d.ShortText(longestRegion), Reachable: d.Bool(), Members: int(d.BigUint16()),
		}
		one.Primary = one.Follows == one.Name
		a.regions = append(a.regions, one)
	}
	for range decodeCount(d, mostAddresses) {
		addresses = append(addresses, d.ShortText(longestAddress))
	}
	if d.Done("regions") != nil || !slices.IsSortedFunc(a.regions, byName) {
		return answer{}, nil, errMessage
	}
	return a, addresses, nil
}

// decodeCount reads a byte that is at most most.
func decodeCount(d *wire.Decoder, most byte) byte {
	n := d.Byte()
	if n > most {
		d.Fail()
		return 0
	}
	return n
}

// longestAddress is that of an IPv6 address with zone and port, and more.
const longestAddress = 100
