package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// Times of what leaders do about other regions.
const (
	// followEvery is how often a leader asks the primary region for what is new, and tells what is honoured.
	followEvery = time.Second
	// afterAll is how long after the latest clock that was reported a record of it counts: no check takes longer.
	afterAll = time.Second
)

var errNoLeader = errors.New("simulation: nobody leads")

// regional is a cluster's part in a world of several regions. It is guarded by the world's mutex.
type regional struct {
	state       *agreement.State // committed
	reports     map[string]report
	reportsTerm int  // the leader's term that the reports are of
	closed      bool // nobody is asked here, and nobody hears of the region
	closings    int  // how often it was closed
	reportDue   bool // a report is due
	lentTotals  map[loanKey]int64
}

// report is what a region's leader says of it.
type report struct {
	region   string
	world    agreement.WorldID
	term     int64
	version  int64
	revision uint64
	honoured int64
	clock    int64 // Unix ms
}

// wall is the region's clock, Unix ms.
func (w *World) wall() int64 { return w.clock.Now().Wall / int64(time.Millisecond) }

// reportRegularly has the leader tell the primary region how it stands, again and again.
func (w *World) reportRegularly() {
	w.after(w.randomDelay(followEvery*9/10, followEvery*11/10), func() {
		w.sendReport()
		w.reportRegularly()
	})
}

// reportSoon is for news: all who may decide go by a new version.
func (w *World) reportSoon() {
	if w.reportDue {
		return
	}
	w.reportDue = true
	w.after(w.randomDelay(time.Millisecond, 20*time.Millisecond), func() {
		w.reportDue = false
		w.sendReport()
	})
}

func (w *World) sendReport() {
	if w.leader.index < 0 || w.closed {
		return
	}
	rg := w.state.Regions
	if w.globe.isPrimary(w.region) && rg.Primary != w.name {
		w.becomePrimary()
	}
	rg = w.state.Regions
	r := report{
		region: w.name, world: rg.World, term: rg.Term, version: versionOf(w.state), revision: rg.Revision,
		honoured: w.honouredVersion(), clock: w.wall(),
	}
	if rg.Primary == w.name && w.globe.isPrimary(w.region) {
		w.handleReport(r)
		return
	}
	w.globe.reportToPrimary(w, r)
}

// becomePrimary makes this region the primary.
func (w *World) becomePrimary() {
	var id agreement.WorldID
	for i := range id {
		id[i] = byte(w.control.IntN(255) + 1)
	}
	if r := w.propose(agreement.Primary{Region: w.name, World: id, When: w.wall()}); r.Err != nil {
		w.ledger.Fail("region %s can't be the primary: %v", w.name, r.Err)
	}
}

// handleReport is the primary's leader's: it takes note of a report, and marks what all have honoured.
func (w *World) handleReport(r report) {
	if w.reportsTerm != w.leader.term || w.reports == nil {
		w.reportsTerm, w.reports = w.leader.term, map[string]report{}
	}
	if r.region != w.name && !slices.Contains(w.state.Regions.Names, r.region) {
		_ = w.propose(agreement.Region{Name: r.region, When: w.wall()})
	}
	w.reports[r.region] = r
	w.markHonoured()
}

// markHonoured asks for the version in force to be honoured, and records it when it is.
func (w *World) markHonoured() {
	rg := w.state.Regions
	if len(rg.Held) == 0 {
		return
	}
	for _, h := range rg.Held {
		if h.Candidate {
			if at, all := w.honouredBy(h); all {
				// It may be rejected: too many are held still.
				_ = w.propose(agreement.Mark{Version: h.Version, At: at + afterAll.Milliseconds()})
			}
			return
		}
	}
	last := rg.Held[len(rg.Held)-1]
	m := agreement.Mark{Version: last.Version}
	if last.At != 0 {
		m.At = w.wall() // versions whose windows have turned are let go of
	}
	if rg.Refuses(m) == nil {
		_ = w.propose(m)
	}
}

// honouredBy reports whether all regions honour a version, and the latest clock of those that said so.
func (w *World) honouredBy(h agreement.Held) (at int64, all bool) {
	rg := w.state.Regions
	names := slices.Clone(rg.Names)
	for _, other := range rg.Held {
		for _, name := range other.Names {
			if !slices.Contains(names, name) && !w.globe.removed(name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		r, known := w.reports[name]
		if !known || r.world != rg.World || r.term != rg.Term || r.honoured < h.Version {
			return 0, false
		}
		at = max(at, r.clock)
	}
	return at, true
}

// answerReport is the primary's leader's answer to another region's report: what is newer, if anything is. It reports false where
// nobody here can tell.
func (w *World) answerReport(r report) (news []byte, ok bool) {
	if w.leader.index < 0 || w.closed || w.state.Regions.Primary != w.name {
		return nil, false
	}
	w.handleReport(r)
	rg := w.state.Regions
	if r.world == rg.World && (r.term > rg.Term ||
		r.term == rg.Term && (r.version > versionOf(w.state) || r.version == versionOf(w.state) && r.revision >= rg.Revision)) {
		return nil, true
	}
	news, err := w.state.AppendFollow(nil)
	if err != nil {
		w.ledger.Fail("what region %s is to follow can't be written: %v", r.region, err)
		return nil, false
	}
	return news, true
}

// adoptNews takes over what the primary's leader answered.
func (w *World) adoptNews(news []byte) {
	if w.leader.index < 0 || w.closed || len(news) == 0 {
		return
	}
	adopt, err := agreement.ParseFollow(news)
	if err != nil {
		w.ledger.Fail("region %s can't read what it is to follow: %v", w.name, err)
		return
	}
	if r := w.propose(adopt); r.Err != nil && !errors.Is(r.Err, agreement.ErrRejected) {
		w.ledger.Fail("region %s can't follow: %v", w.name, r.Err)
	}
}
