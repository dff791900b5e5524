package entries

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrDiverged means that records or pages to follow do not continue a state.
var ErrDiverged = errors.New("these changes of entries do not follow the ones before")

// Page is a part of the entries of another region's state: those whose IDs are
// above After and at most UpTo, or all above After if UpTo is empty. The state
// may change from page to page. A region that applies all pages, and then the
// records since the version of the first page, has the other region's state all
// the same.
type Page struct {
	After   string   `json:"after,omitempty"`
	UpTo    string   `json:"up_to,omitempty"`
	Entries []*Entry `json:"entries,omitempty"` // sorted by ID
	// Version and Digest are those of the state that the page is from. FollowPage
	// uses them only on the last page, where the follower must first replace them
	// by those of the first page.
	Version int64  `json:"version"`
	Digest  Digest `json:"digest"`
}

// IsLast reports whether no page follows.
func (p *Page) IsLast() bool { return p.UpTo == "" }

// Page returns the page after an ID, of about most bytes.
func (s *State) Page(after string, most int) *Page {
	p := &Page{After: after, Version: s.version, Digest: s.digest}
	sorted := s.Sorted()
	first, found := slices.BinarySearchFunc(sorted, after,
		func(e *Entry, id string) int { return strings.Compare(e.id, id) })
	if found {
		first++
	}

	size := 0
	for i, e := range sorted[first:] {
		size += 2 * e.size()
		if size > most && i > 0 {
			p.UpTo = sorted[first+i-1].id
			break
		}
		p.Entries = append(p.Entries, e)
	}

	return p
}

// FollowPage returns s with the entries of a page in place of its own in the
// page's range, and with an empty log. The last page also sets the version and
// the digest.
func (s *State) FollowPage(p *Page) (*State, error) {
	next := *s
	next.log = changeLog{}
	next.edit()

	// The loop walks s while next changes. That is safe: next copies a node of the
	// tree before it changes the node.
	for e := range s.All {
		if e.id > p.After && (p.IsLast() || e.id <= p.UpTo) {
			next.remove(e)
		}
	}

	for _, e := range p.Entries {
		if e == nil {
			return nil, fmt.Errorf("%w: an entry is null", ErrInvalid)
		}
		if err := e.Check(); err != nil {
			return nil, err
		}

		e = e.withID()
		if next.Get(e.id) != nil || e.id <= p.After || !p.IsLast() && e.id > p.UpTo {
			return nil, fmt.Errorf("%w: %s is not in the range of its page", ErrDiverged, shorten(e.id))
		}

		next.put(e)
	}
	next.done()

	// The version stays until the last page, so that an interrupted copy begins
	// again with the first page.
	if p.IsLast() {
		next.version, next.digest = p.Version, p.Digest
	}

	return &next, nil
}

// Follow returns s after records of another region's state. It checks each
// entry, but not whether there is room for all.
func (s *State) Follow(list []*Record) (*State, error) {
	next := *s
	next.edit()
	for _, r := range list {
		if r == nil || r.Version != next.version+1 || r.Before == nil && r.After == nil {
			return nil, fmt.Errorf("%w: after version %d", ErrDiverged, next.version)
		}
		if err := next.follow(r); err != nil {
			return nil, err
		}
	}
	next.done()
	return &next, nil
}

// follow makes the change of r. s must not be shared yet.
func (s *State) follow(r *Record) error {
	again := Record{When: r.When, By: r.By, Ended: r.Ended}

	for _, e := range []*Entry{r.Before, r.After} {
		if e == nil {
			continue
		}
		if err := e.Check(); err != nil {
			return err
		}

		// Whatever s has under this ID goes, even if it is not r.Before: a page may
		// have brought something newer than r.
		if have := s.Get(e.ID()); have != nil {
			s.remove(have)
		}
	}

	if r.Before != nil {
		again.Before = r.Before.withID()
	}

	if r.After != nil {
		again.After = r.After.withID()
		s.put(again.After)
	}

	s.record(again)
	return nil
}
