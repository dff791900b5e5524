package cluster

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

const (
	// fresh is how old the last report of a region may be that counts as there.
	fresh = 5 * time.Second
	// maxReports bounds the regions of which reports are noted: those that are committed, and as many that are not.
	maxReports = 2 * agreement.MaxRegions
)

// report is what a region told last.
type report struct {
	honoured honour // the newest that it told of its line: what was honoured once stays so
	level    agreement.Level
	clock    int64 // its wall clock, Unix ms, when it told that; the latest that was heard
	at       time.Time
}

// reports is what the regions have told the leader of the primary. A new leader hears all of it anew within a moment.
type reports struct {
	// mu guards what follows.
	mu sync.Mutex
	by map[string]report
}

// note takes a report in; ok is false if there are too many regions.
func (r *reports) note(region string, h honour, clock int64, now time.Time) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]report{}
	}
	before, known := r.by[region]
	if !known && len(r.by) >= maxReports && !r.dropStaleLocked(now) {
		return false
	}
	if before.honoured.same(h) {
		h.version = max(h.version, before.honoured.version)
	}
	r.by[region] = report{honoured: h, level: before.level, clock: max(clock, before.clock), at: now}
	return true
}

// noteLevel notes the feature level of a region that has told something.
func (r *reports) noteLevel(region string, level agreement.Level) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.by[region]
	one.level = level
	r.by[region] = one
}

// below returns a region whose level is lower, or not known now; "" if there is none.
func (r *reports) below(names []string, level agreement.Level, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if one, ok := r.by[name]; !ok || one.level < level || now.Sub(one.at) >= fresh {
			return name
		}
	}
	return ""
}

// dropStaleLocked makes room, if some region has not told anything for a while.
func (r *reports) dropStaleLocked(now time.Time) bool {
	for name, one := range r.by {
		if now.Sub(one.at) >= fresh {
			delete(r.by, name)
			return true
		}
	}
	return false
}

// strangers are the regions that tell something and are not among names.
func (r *reports) strangers(names map[string]bool, now time.Time) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for name, one := range r.by {
		if !names[name] && now.Sub(one.at) < fresh {
			list = append(list, name)
		}
	}
	return list
}

// heard says whether a region has told something lately.
func (r *reports) heard(region string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, ok := r.by[region]
	return ok && now.Sub(one.at) < fresh
}

// all returns the latest clock of the regions, if each has honoured h or a later version of its line.
func (r *reports) all(names []string, h honour) (clock int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		one, known := r.by[name]
		if !known || !one.honoured.same(h) || one.honoured.version < h.version {
			return 0, false
		}
		clock = max(clock, one.clock)
	}
	return clock, true
}

// drop forgets a region that was removed.
func (r *reports) drop(region string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, region)
}

// forget forgets all: this node does not lead.
func (r *reports) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.by)
}
