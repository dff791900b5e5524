package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// Times of the leaders' work between regions.
const (
	// followEvery is the interval at which a leader reports to the primary region and asks for news.
	followEvery = time.Second
	// afterAll is added to the latest reported clock to get the time at which a record takes effect: no check takes
	// longer.
	afterAll = time.Second
)

var errNoLeader = errors.New("simulation: no leader")

// regional is a cluster's part in a world of several regions. The world's mutex guards it.
type regional struct {
	state       *agreement.State // committed
	reports     map[string]report
	reportsTerm int  // the leader's term in which reports were collected
	closed      bool // the region takes no checks, and other regions don't hear of it
	closings    int  // number of times it was closed
	reportDue   bool // a report is scheduled
	lentTotals  map[loanKey]int64
}

// report is a region's state as its leader reports it.
type report struct {
	region       string
	world        agreement.WorldID
	primaryEpoch int64
	version      int64
	revision     uint64
	honoured     int64
	clock        int64 // Unix ms
}

// wall returns the region's clock in Unix ms.
func (w *World) wall() int64 { return w.clock.Now().Wall / int64(time.Millisecond) }

// reportRegularly makes the leader report to the primary region at regular intervals.
func (w *World) reportRegularly() {
	w.after(w.randomDelay(followEvery*9/10, followEvery*11/10), func() {
		w.sendReport()
		w.reportRegularly()
	})
}

// reportSoon reports that all nodes which may decide have applied a new version.
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
		region: w.name, world: rg.World, primaryEpoch: rg.PrimaryEpoch, version: versionOf(w.state), revision: rg.Revision,
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
		w.ledger.Fail("region %s: become the primary: %v", w.name, r.Err)
	}
}

// handleReport runs at the primary's leader: it stores a report and marks the version that all regions honour.
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

// markHonoured proposes the version in force as the candidate to honour, and records it once all regions honour it.
func (w *World) markHonoured() {
	rg := w.state.Regions
	if len(rg.Held) == 0 {
		return
	}

	for _, h := range rg.Held {
		if h.Candidate {
			if at, all := w.honouredBy(h); all {
				// The mark may be rejected, because the state still holds too many versions.
				_ = w.propose(agreement.Mark{Version: h.Version, At: at + afterAll.Milliseconds()})
			}
			return
		}
	}

	last := rg.Held[len(rg.Held)-1]
	m := agreement.Mark{Version: last.Version}
	if last.At != 0 {
		m.At = w.wall() // lets the state drop versions whose windows are over
	}
	if rg.Refuses(m) == nil {
		_ = w.propose(m)
	}
}

// honouredBy reports whether all regions honour a version, and returns the latest clock among their reports.
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
		if !known || r.world != rg.World || r.primaryEpoch != rg.PrimaryEpoch || r.honoured < h.Version {
			return 0, false
		}
		at = max(at, r.clock)
	}

	return at, true
}

// answerReport runs at the primary's leader: it returns what is newer than another region's report, or nil. ok is false
// if this region can't answer.
func (w *World) answerReport(r report) (news []byte, ok bool) {
	if w.leader.index < 0 || w.closed || w.state.Regions.Primary != w.name {
		return nil, false
	}

	w.handleReport(r)
	rg := w.state.Regions
	if r.world == rg.World && (r.primaryEpoch > rg.PrimaryEpoch ||
		r.primaryEpoch == rg.PrimaryEpoch && (r.version > versionOf(w.state) || r.version == versionOf(w.state) && r.revision >= rg.Revision)) {
		return nil, true
	}

	news, err := w.state.AppendAdopt(nil)
	if err != nil {
		w.ledger.Fail("encode the news for region %s: %v", r.region, err)
		return nil, false
	}

	return news, true
}

// adoptNews adopts the answer of the primary's leader.
func (w *World) adoptNews(news []byte) {
	if w.leader.index < 0 || w.closed || len(news) == 0 {
		return
	}
	adopt, err := agreement.ParseAdopt(news)
	if err != nil {
		w.ledger.Fail("region %s: decode the primary's news: %v", w.name, err)
		return
	}
	if r := w.propose(adopt); r.Err != nil && !errors.Is(r.Err, agreement.ErrRejected) {
		w.ledger.Fail("region %s: adopt the primary's news: %v", w.name, r.Err)
	}
}
