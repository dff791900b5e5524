package agreement

import (
	"fmt"

	"github.com/rlnode/rlnode/rules/entries"
)

// MaxEntriesChange bounds the JSON of ChangeEntries and of AdoptEntries, in
// bytes.
const MaxEntriesChange = 4 << 20

// ChangeEntries makes all of Changes to the entries beside the rules, or none.
// Its result has the version of those entries. Repeating it with the same
// Request changes nothing and returns the first answer again. Only the primary
// region's leader proposes it.
type ChangeEntries struct {
	Request RequestID        `json:"request"`
	Changes []entries.Change `json:"changes"`
}

// ExpireEntries removes the entries beside the rules that end at or before a time,
// in Unix ms. If there are many, it removes only those that ended first. Only
// the primary region's leader proposes it.
type ExpireEntries struct {
	Before int64 `json:"before"`
}

// AdoptEntries copies changes of the primary's entries, or a page of all of
// them. Exactly one of the fields is set.
type AdoptEntries struct {
	Records []*entries.Record `json:"records,omitempty"`
	Page    *entries.Page     `json:"page,omitempty"`
}

func (e ChangeEntries) apply(next *State) Result {
	if a := next.answerTo(e.Request); a != nil {
		return a.Result
	}
	r := e.enact(next)
	next.rememberAnswer(e.Request, r)
	return r
}

// enact makes all changes, or none.
func (e ChangeEntries) enact(next *State) Result {
	changed := next.Entries
	for _, c := range e.Changes {
		after, err := changed.With(c)
		if err != nil {
			return Result{Err: err}
		}
		changed = after
	}
	next.Entries = changed
	return Result{Version: changed.Version()}
}

func (e ExpireEntries) apply(next *State) Result {
	next.Entries, _ = next.Entries.Expire(e.Before)
	return Result{Version: next.Entries.Version()}
}

func (e AdoptEntries) apply(next *State) Result {
	if (e.Page == nil) == (len(e.Records) == 0) {
		return rejected("entries to adopt are either records or a page")
	}

	var adopted *entries.State
	var err error
	if e.Page != nil {
		adopted, err = next.Entries.FollowPage(e.Page)
	} else {
		adopted, err = next.Entries.Follow(e.Records)
	}

	if err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}

	next.Entries = adopted
	return Result{Version: adopted.Version()}
}
