package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

// The messages between nodes, all with a reply.
const (
	MethodSources peer.Method = 128 + iota // what a node has of a month
	MethodRows                             // a page of one source's rows
	MethodTake                             // a part of a ledger that is handed over
)

// CodeFailed is the failure of calls; callers take it as any other.
const CodeFailed peer.Code = 128

// Bounds of what nodes ask each other.
const (
	callTime = 5 * time.Second
	pageSize = 256 << 10 // bytes, about
	// maxServing bounds the questions that are answered here at once; one more is turned away.
	maxServing = 8
	// maxListings bounds the ledgers open for reading; each takes 4 bytes a row.
	maxListings = 8
	// listingTime is how long one that nobody reads is kept.
	listingTime = time.Minute
)

// Member is a node of the cluster.
type Member struct {
	ID   ring.NodeID
	Name string
}

// Peers carries messages to other nodes. *peer.Peers is one.
type Peers interface {
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
}

// Cluster adds up what all nodes counted. Close ends it; the Meter stays open.
type Cluster struct {
	meter   *Meter
	peers   Peers
	members func() []Member // all that have not left, also those that are gone

	serving chan struct{} // holds a token for each question under way
	done    sync.WaitGroup
	gate    sync.Mutex // guards closed, and so that nothing is added to done after it
	closed  bool
	handing sync.Mutex // serialises HandOver

	mu       sync.Mutex          // guards what follows, and reading from listings
	listings map[string]*listing // by path
	taking   map[string]*taking  // by file name: ledgers that are being handed over to this node
	handed   handed
}

// Join makes m's months part of the cluster's.
func Join(m *Meter, peers Peers, members func() []Member) *Cluster {
	return &Cluster{
		meter: m, peers: peers, members: members, serving: make(chan struct{}, maxServing),
		listings: make(map[string]*listing), taking: make(map[string]*taking),
	}
}

// Close waits for the questions under way and closes what is read.
func (c *Cluster) Close() error {
	c.gate.Lock()
	c.closed = true
	c.gate.Unlock()
	c.done.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for path, l := range c.listings {
		errs = append(errs, l.close())
		delete(c.listings, path)
	}
	for name, t := range c.taking {
		t.drop()
		delete(c.taking, name)
	}
	return errors.Join(errs...)
}

// source is what one node has of a month that one node counted.
type source struct {
	Source   ring.NodeID `json:"source"`
	Node     string      `json:"node"` // that counted it
	Own      bool        `json:"own"`  // by the node that answers: it is as new as can be
	Sequence uint64      `json:"sequence"`
	Damaged  bool        `json:"damaged"` // or was, and what was set aside is there still
	at       Member      // who has it
}

// better reports whether a is a newer copy than b.
func (a *source) better(b *source) bool {
	if a.Own != b.Own {
		return a.Own
	}
	return a.Sequence > b.Sequence
}

// here lists the sources that this node has of a month.
func (c *Cluster) here(month Month) ([]source, error) {
	list, err := entries(c.meter.dir)
	if err != nil {
		return nil, fmt.Errorf("list months of usage: %w", err)
	}
	var out []source
	self := &c.meter.cfg
	if c.meter.onlyInMemory(month) { // which is not read from here: it is missing
		out = append(out, source{Source: self.Self, Own: true, Node: self.Name, Damaged: true})
		list = slices.DeleteFunc(list, func(e entry) bool { return e.source == self.Self })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range list {
		if e.month != month {
			continue
		}
		s := source{Source: e.source, Own: e.source == c.meter.cfg.Self, Node: e.source.String()}
		l, err := c.open(e, fresh)
		if err != nil {
			c.meter.cfg.Logger.Error("a month of usage can't be read", "file", e.path, "error", err)
			s.Damaged = true
		} else {
			s.Node, s.Sequence, s.Damaged = l.header.node, l.header.sequence, l.bad > 0 || len(setAsides(e.path)) > 0
		}
		out = append(out, s)
	}
	return out, nil
}

// age is what is wanted of a listing.
type age bool

const (
	fresh age = true  // with all rows that there are now
	kept  age = false // the one that was opened before will do
)

// open is the listing of a ledger. c.mu is held, here and while it is read.
func (c *Cluster) open(e entry, want age) (*listing, error) {
	now := time.Now()
	path := c.meter.readable(e)
	l := c.listings[path]
	if l != nil && want == kept {
		l.used = now
		return l, nil
	}
	c.tidy(path, now)
	l, err := openListing(path)
	if errors.Is(err, fs.ErrNotExist) && path != e.path { // the month went out of shared memory just now
		path = e.path
		c.tidy(path, now)
		l, err = openListing(path)
	}
	if err != nil {
		return nil, err
	}
	l.used = now
	c.listings[path] = l
	return l, nil
}

// tidy closes the listing of a path, those that nobody reads, and so many that there is room for one more.
func (c *Cluster) tidy(path string, now time.Time) {
	var oldest string
	for p, l := range c.listings {
		if p == path || now.Sub(l.used) > listingTime {
			c.shut(p)
		} else if oldest == "" || l.used.Before(c.listings[oldest].used) {
			oldest = p
		}
	}
	if len(c.listings) >= maxListings {
		c.shut(oldest)
	}
}

func (c *Cluster) shut(path string) {
	if err := c.listings[path].close(); err != nil {
		c.meter.cfg.Logger.Warn("a month of usage is not closed", "error", err)
	}
	delete(c.listings, path)
}

// pageQuery asks for a page.
type pageQuery struct {
	Month  Month       `json:"month"`
	Source ring.NodeID `json:"source"`
	Rule   string      `json:"rule"`
	After  []byte      `json:"after"` // names of the last row before; none: from the first
}

// page reads a page here: a byte that says whether there are more, and rows.
func (c *Cluster) page(q *pageQuery) (body []byte, err error) {
	var after *Row
	if len(q.After) > 0 {
		after = &Row{}
		if err := after.readNames(q.After); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	path := filepath.Join(c.meter.dir, fileName(q.Month, q.Source))
	l, err := c.open(entry{path, q.Month, q.Source}, kept)
	if err != nil {
		return nil, err
	}
	err = guarded(func() error {
		var more bool
		if body, more = l.appendPage([]byte{0}, q.Rule, after, pageSize); more {
			body[0] = 1
		}
		return nil
	})
	return body, err
}

// Handle has p bring the messages of other nodes here.
func (c *Cluster) Handle(p *peer.Peers) {
	for _, m := range []peer.Method{MethodSources, MethodRows, MethodTake} {
		p.Handle(m, peer.Near, c.serve)
	}
}

// serve answers a message of another node. It does not block.
func (c *Cluster) serve(call *peer.Call) {
	call.Keep()
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.closed {
		call.Fail(CodeFailed, "the node is stopping")
		return
	}
	select {
	case c.serving <- struct{}{}:
	default:
		call.Fail(CodeFailed, "too many questions about usage at once")
		return
	}
	c.done.Go(func() {
		defer func() { <-c.serving }()
		body, err := c.answer(call.Method, call.Body)
		if err != nil {
			call.Fail(CodeFailed, err.Error())
			return
		}
		call.Reply(body)
	})
}

// answer answers a message.
func (c *Cluster) answer(m peer.Method, body []byte) ([]byte, error) {
	switch m {
	case MethodSources:
		var month Month
		if err := json.Unmarshal(body, &month); err != nil {
			return nil, errRecord
		}
		list, err := c.here(month)
		if err != nil {
			return nil, err
		}
		return json.Marshal(list)
	case MethodRows:
		var q pageQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, errRecord
		}
		return c.page(&q)
	case MethodTake:
		return c.take(body)
	}
	return nil, errors.New("no such method")
}

// sourcesOf asks a node what it has of a month.
func (c *Cluster) sourcesOf(ctx context.Context, m Member, month Month) (list []source, err error) {
	if m.ID == c.meter.cfg.Self {
		list, err = c.here(month)
	} else {
		var body []byte
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		if body, err = json.Marshal(month); err == nil {
			if body, err = c.peers.Call(ctx, m.ID, MethodSources, body); err == nil {
				err = json.Unmarshal(body, &list)
			}
		}
	}
	for i := range list {
		list[i].at = m
		list[i].Own = list[i].Own && list[i].Source == m.ID
	}
	return list, err
}

// gather finds the newest copy of each source, and the nodes that may have more.
func (c *Cluster) gather(ctx context.Context, month Month, members []Member) (best []source, missing []string) {
	var mu sync.Mutex // guards best and missing
	var group sync.WaitGroup
	for _, m := range members {
		group.Go(func() {
			list, err := c.sourcesOf(ctx, m, month)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				missing = append(missing, m.Name)
			}
			for _, s := range list {
				i := slices.IndexFunc(best, func(b source) bool { return b.Source == s.Source })
				switch {
				case i < 0:
					best = append(best, s)
				case s.better(&best[i]):
					best[i] = s
				}
			}
		})
	}
	group.Wait()
	for i := range best {
		if best[i].Damaged {
			missing = append(missing, best[i].Node)
		}
	}
	slices.Sort(missing)
	slices.SortFunc(best, func(a, b source) int { return a.Source.Compare(b.Source) })
	return best, slices.Compact(missing)
}
