//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// quota is a rule with one fixed window or bucket, over all regions or, for
// comparison, in each region separately.
type quota struct {
	rule
	regional bool
	parts    string // regions: as text; "" for equal shares
	demands  []demand
}

// demand is the requested cost for one subject, in units per second, by region.
type demand struct {
	key  string
	rate [3]float64
	late [3]bool // no demand in the first part of each window
}

// lateness is the part of a window in which a late region has no demand, and may lend its share.
const lateness = 4500 * time.Millisecond

// tenth is the window of the quotas that are judged many times in a run.
const tenth = 10 * time.Second

// quotasText returns a document with the quotas. A number in it distinguishes versions.
func quotasText(number int, list []quota) string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for i := range list {
		q := &list[i]
		scope, burst := "scope: global", ""
		if q.regional {
			scope = "scope: region"
		}
		if !q.hybrid {
			scope += ", consistency: exact"
		}
		if q.parts != "" {
			scope += ", regions: " + q.parts
		}
		if q.burst > 0 {
			burst = fmt.Sprintf(", burst: %d", q.burst)
		}
		fmt.Fprintf(&b,
			"  - {name: %s, key: [tenant], %s, limits: [{limit: %d, per: %v, algorithm: %s%s}]}\n",
			q.name, scope, q.limit, q.per, q.algorithm, burst)
	}
	fmt.Fprintf(&b,
		"  - {name: number, key: [ip], limits: [{limit: %d, per: 1h, algorithm: fixed-window}]}\n",
		1_000_000+number)
	return b.String()
}

func versionIn(answer string) (int64, error) {
	var a struct{ Version int64 }
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return 0, err
	}
	return a.Version, nil
}

// share returns a region's part of a quota with equal shares, in whole units.
// The first regions by name get the remainder.
func (q *quota) share(region int) int64 {
	n := int64(len(regionNames))
	s := q.limit / n
	before := 0
	for _, other := range regionNames {
		if other < regionNames[region] {
			before++
		}
	}
	if int64(before) < q.limit%n {
		s++
	}
	return s
}

// pattern returns a random demand for a quota. Each quota has its own seed.
func pattern(q *quota, seed uint64) demand {
	random := rand.New(rand.NewPCG(seed, 5))
	d := demand{key: fmt.Sprintf("%s-%d-%d", q.name, seed, random.IntN(1<<20))}
	unit := float64(q.limit) / q.per.Seconds()
	switch random.IntN(4) {
	case 0: // all of it in one region
		d.rate[random.IntN(3)] = 1.5 * unit
	case 1: // in all regions, each more than its share
		for i := range d.rate {
			d.rate[i] = (0.5 + 0.2*random.Float64()) * unit
		}
	case 2: // in two regions
		quiet := random.IntN(3)
		for i := range d.rate {
			if i != quiet {
				d.rate[i] = (0.7 + 0.3*random.Float64()) * unit
			}
		}
	case 3: // anything
		for i := range d.rate {
			d.rate[i] = random.Float64() * unit
		}
	}
	return d
}

// busy reports whether a region demands clearly more than its share.
func (q *quota) busy(d *demand, region int) bool {
	return d.rate[region]*q.per.Seconds() > 1.25*float64(q.share(region))
}

// exhausted reports whether a demand surely uses up a whole quota: all regions
// with demand exceed their shares, and together the quota.
func (q *quota) exhausted(d *demand) bool {
	sum := 0.0
	for region, rate := range d.rate {
		sum += rate
		if rate > 0 && !q.busy(d, region) {
			return false
		}
	}
	return sum*q.per.Seconds() > 1.25*float64(q.limit)
}

// seen is what clients observed of one subject of one quota. A hit's node is
// its index among all nodes of the world.
type seen struct {
	quota   *quota
	demand  *demand
	mu      sync.Mutex // guards the fields below
	hits    []hit      // admitted ones
	refused []hit
	lost    int // lost answers
}

// market generates the demand for all quotas in all regions. Each stream has its own pace.
type market struct {
	globe  *globe
	all    []*seen
	stop   chan struct{}
	done   sync.WaitGroup
	watch  load // only records when the tests themselves run
	begun  int64
	closed int64
	books  []book
}

// book is what a region reported for a subject shortly before a window ended.
type book struct {
	seen     *seen
	region   int
	from, to int64 // of the window
	spent    spent
}

func (g *globe) market() *market {
	m := &market{globe: g, stop: make(chan struct{}), begun: boottime()}
	m.watch.stop = m.stop
	m.done.Go(m.watch.watch)
	for i := range g.rules {
		q := &g.rules[i]
		for j := range q.demands {
			s := &seen{quota: q, demand: &q.demands[j]}
			m.all = append(m.all, s)
			for region, rate := range s.demand.rate {
				if rate > 0 {
					random := rand.New(rand.NewPCG(g.random.Uint64(), uint64(region)))
					m.done.Go(func() { m.stream(s, region, random) })
				}
			}
		}
	}
	return m
}

// stream makes checks of one subject in one region, at random nodes.
func (m *market) stream(s *seen, region int, random *rand.Rand) {
	size := len(m.globe.regions[region].nodes)
	clients := make([]*http.Client, size)
	for i, n := range m.globe.regions[region].nodes {
		clients[i] = &http.Client{Timeout: 3 * time.Second,
			Transport: &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 1}}
		defer clients[i].CloseIdleConnections()
	}
	next := time.Now()
	for {
		cost := int64(1) // often 1, so that a limit is used up to the last unit
		if s.quota.cost > 1 && random.IntN(3) == 0 {
			cost += random.Int64N(s.quota.cost)
		}
		pause := time.Duration(float64(cost) / s.demand.rate[region] * float64(time.Second))
		next = next.Add(pause)
		if time.Until(next) < -time.Second {
			next = time.Now() // don't make up for checks that a slow machine missed
		}
		select {
		case <-m.stop:
			return
		case <-time.After(time.Until(next)):
		}
		if s.demand.late[region] && time.Duration(time.Now().UnixNano())%tenth < lateness {
			continue
		}
		at := random.IntN(size)
		if m.globe.regions[region].nodes[at].is() == live {
			m.ask(clients[at], s, region*size+at, cost)
		}
	}
}

func (m *market) ask(client *http.Client, s *seen, at int, cost int64) {
	n := m.globe.nodes[at]
	h := hit{node: at, cost: cost, sent: boottime()}
	body := fmt.Sprintf(`{"rule": %q, "key": %q, "cost": %d}`, s.quota.name, s.demand.key, cost)
	status, by, _, err := post(client, "http://"+n.ip+":8080/v1/check", body)
	h.got, h.by, h.admitted = boottime(), by, status == 200
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil || status != 200 && status != 429:
		s.lost++
	case h.admitted:
		s.hits = append(s.hits, h)
	default:
		s.refused = append(s.refused, h)
	}
}

// end stops the checks and logs how they went.
func (m *market) end() {
	m.globe.t.Helper()
	close(m.stop)
	m.done.Wait()
	m.closed = boottime()
	m.globe.settle()
	by, admitted, refused, lost := map[string]int{}, 0, 0, 0
	for _, s := range m.all {
		admitted, refused, lost = admitted+len(s.hits), refused+len(s.refused), lost+s.lost
		for _, h := range slices.Concat(s.hits, s.refused) {
			by[h.by]++
		}
	}
	m.globe.t.Logf("%d admitted, %d refused, %d lost, by %v, the tests stalled %d times", admitted,
		refused, lost, by, len(m.watch.stalls))
	if admitted < 100 {
		m.globe.t.Error("there was hardly any demand")
	}
}

// stalled reports whether the tests themselves did not run in a span of time.
func (m *market) stalled(from, to int64) bool {
	return slices.ContainsFunc(m.watch.stalls, func(s [2]int64) bool { return from < s[1] && s[0] < to })
}

// spent is what a node reports for a subject in its own region.
type spent struct {
	Share, Used, Own, Lent, Borrowed, Remaining int64
}

// spentIn returns what a region has counted for a subject. The node also asks
// the other regions, in vain if they are cut off.
func (n *node) spentIn(region, rule, key string) (s spent, err error) {
	var u struct {
		Regions map[string]struct {
			Limits []spent `json:"limits"`
		} `json:"regions"`
	}
	if err := n.get("/v1/usage?rule="+rule+"&key="+key, &u); err != nil {
		return s, err
	}
	if l := u.Regions[region].Limits; len(l) == 1 {
		return l[0], nil
	}
	return s, fmt.Errorf("%s: usage of %s %s in %s: %+v", n.name, rule, key, region, u)
}

// read asks each region with demand for a subject of a fixed window what it has
// counted, shortly before a window ends.
func (m *market) read() {
	m.globe.t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex // guards books and wrong
	var wrong []error
	for _, s := range m.all {
		for r, f := range m.globe.regions {
			if s.quota.per != tenth || s.quota.algorithm != "fixed-window" || s.quota.regional ||
				!s.quota.busy(s.demand, r) {
				continue
			}
			now := time.Now().UnixNano()
			from := now - now%int64(tenth) - m.globe.shift
			n := f.any()
			all.Go(func() {
				spent, err := n.spentIn(regionNames[r], s.quota.name, s.demand.key)
				mu.Lock()
				defer mu.Unlock()
				if m.books = append(m.books, book{s, r, from, from + int64(tenth), spent}); err != nil {
					wrong = append(wrong, err)
				}
			})
		}
	}
	all.Wait()
	for _, err := range wrong {
		m.globe.t.Error(err)
	}
}

// judgeBooks checks that regions could spend their shares, less what they had
// lent, in windows in which they were cut off.
func (m *market) judgeBooks() {
	t := m.globe.t
	t.Helper()
	lent, borrowed := int64(0), int64(0)
	for _, b := range m.books {
		_, region := b.seen.generous(m.globe, b.from, b.to)
		own := b.spent.Share - b.spent.Lent
		lent, borrowed = lent+b.spent.Lent, borrowed+b.spent.Borrowed
		switch {
		case b.spent.Share != b.seen.quota.share(b.region):
			t.Errorf("%s %s: share in %s: have %d, want %d", b.seen.quota.name, b.seen.demand.key,
				regionNames[b.region], b.spent.Share, b.seen.quota.share(b.region))
		case region[b.region]*1000 < own*1000-b.spent.Share*stingy && !m.stalled(b.from, b.to):
			t.Errorf("%s %s: window at %s: %s admitted %d, want at least its share less what it has lent: %+v",
				b.seen.quota.name, b.seen.demand.key, clockOf(b.from+
					m.globe.shift), regionNames[b.region], region[b.region], b.spent)
		}
	}
	t.Logf("%d times a region was busy as ways were cut: %d lent and %d borrowed by then", len(m.books), lent, borrowed)
}

// turn waits until the next window turns, and for a time after that; a negative
// time is before the turn.
func (g *globe) turn(per, then time.Duration) {
	now := time.Duration(time.Now().UnixNano())
	g.pass(max(0, per-now%per+then))
}

// between returns a random duration.
func (g *globe) between(from, to time.Duration) time.Duration { return g.regions[0].between(from, to) }

// pass waits under load: the events meanwhile are what is tested.
func (g *globe) pass(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
}
