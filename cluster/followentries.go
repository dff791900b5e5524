package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules/entries"
)

// followBytes is about how many bytes of entries another region gets at a time.
const followBytes = 1 << 20

// entriesPosition says which entries a region has, and which part of the primary's it asks for.
type entriesPosition struct {
	Version int64          `json:"version"`
	Digest  entries.Digest `json:"digest"`
	// Paging means that the region follows all entries, page by page, and asks for
	// the page after the ID After.
	Paging bool   `json:"paging,omitempty"`
	After  string `json:"after,omitempty"`
}

// entriesPaging is how far this region's leader has followed all of the primary's entries.
type entriesPaging struct {
	first *entries.Page // without its entries; nil while the leader follows changes, not pages
	after string
}

// position returns what to ask the primary for.
func (p *entriesPaging) position(s *entries.State) entriesPosition {
	return entriesPosition{Version: s.Version(), Digest: s.Digest(), Paging: p.first != nil, After: p.after}
}

// entriesNewsFor returns what a region at a position has to follow, or nil if it is up to date.
func entriesNewsFor(s *entries.State, at entriesPosition) *agreement.AdoptEntries {
	if at.Paging {
		return &agreement.AdoptEntries{Page: s.Page(at.After, followBytes)}
	}

	list, known := s.Since(at.Version, at.Digest, followBytes)
	switch {
	case !known:
		return &agreement.AdoptEntries{Page: s.Page("", followBytes)}
	case len(list) == 0:
		return nil
	}
	return &agreement.AdoptEntries{Records: list}
}

// adoptEntries makes this region agree on the primary's changes of entries, or on a page of them.
func (sr *sharedRules) adoptEntries(ctx context.Context, b []byte) error {
	var e agreement.AdoptEntries
	if err := json.Unmarshal(b, &e); err != nil {
		return fmt.Errorf("parse the primary region's entries: %w", err)
	}

	paging := &sr.paging
	if e.Page != nil {
		if paging.first == nil {
			paging.first = &entries.Page{Version: e.Page.Version, Digest: e.Page.Digest}
		}
		// Later pages may come from newer states. Still, all pages get the version of
		// the first page: the region then asks for the changes since that version, so
		// that it misses none.
		e.Page.Version, e.Page.Digest = paging.first.Version, paging.first.Digest
	}

	_, err := sr.agree(ctx, e)
	switch {
	case err != nil:
		*paging = entriesPaging{} // this region begins again with the first page
		return fmt.Errorf("follow the primary region's entries: %w", err)
	case e.Page == nil || e.Page.IsLast():
		*paging = entriesPaging{}
	default:
		paging.after = e.Page.UpTo
	}

	return nil
}
