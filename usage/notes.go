package usage

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

const (
	// notesEvery is how often notes are exchanged with one other node, in units of copyInterval.
	notesEvery = 10
	// maxSeen and maxSeenName bound notes from other nodes. The oldest nodes go
	// first.
	maxSeen     = 8192
	maxSeenName = 512
)

// notebook is what this node remembers for bills beside ledgers. Nodes exchange
// notes, so that a node's notes survive the node.
type notebook struct {
	mu      sync.Mutex // guards the fields below
	loaded  bool       // what the file had is here
	unsaved bool       // the file lacks something worth a write
	noted   Month      // the month in which nodes were last noted
	nodes   map[ring.NodeID]seenNode
	exports map[Month]exported
}

// seenNode says when a node was a member, as far as others know. By it, a bill
// can name a node that is gone and left no copy anywhere.
type seenNode struct {
	Name  string `json:"name"`
	First int64  `json:"first"` // Unix nanoseconds
	Last  int64  `json:"last"`
	// Gone is when somebody first found that the node was no longer a member; 0 if
	// it may be one. It went between Last and Gone.
	Gone int64 `json:"gone,omitempty"`
}

// with returns what the notes of two nodes say together about one node.
func (sn seenNode) with(other seenNode) seenNode {
	sn.First = min(sn.First, other.First)
	sn.Last = max(sn.Last, other.Last)
	if sn.Gone < sn.Last || other.Gone >= sn.Last && other.Gone < sn.Gone {
		sn.Gone = other.Gone
	}
	if sn.Gone < sn.Last {
		sn.Gone = 0 // it has come back since then
	}
	return sn
}

// exported says that a month was exported as CSV.
type exported struct {
	At     int64  `json:"at"`     // Unix nanoseconds; 0 if it never was
	Digest uint64 `json:"digest"` // of what was exported
	// Revised is the digest of the bill when it was last found to have changed
	// since the export, and RevisedAt is when that was.
	Revised   uint64 `json:"revised,omitempty"`
	RevisedAt int64  `json:"revised_at,omitempty"`
}

// isAfter reports whether e is of a later export than other, or a later
// revision of the same one.
func (e exported) isAfter(other exported) bool {
	return e.At > other.At || e.At == other.At && e.RevisedAt > other.RevisedAt
}

// notes are a notebook's contents as sent and stored, and what this node knows
// about processes of nodes that are gone.
type notes struct {
	Nodes   map[ring.NodeID]seenNode `json:"nodes"`
	Exports map[Month]exported       `json:"exports"`
	Records []*processRecord         `json:"records,omitempty"` // only sent
}

var notesKey = []byte("notes")

// merge adds what other notes say. It reports whether that is worth a write.
func (nb *notebook) merge(other *notes) (news bool) {
	for id, theirs := range other.Nodes {
		if len(theirs.Name) > maxSeenName || id.IsZero() || theirs.First > theirs.Last {
			continue
		}

		ours, known := nb.nodes[id]
		if !known {
			nb.nodes[id] = theirs
			news = true
			continue
		}

		both := ours.with(theirs)
		nb.nodes[id] = both
		news = news || both.Gone != ours.Gone
	}

	for len(nb.nodes) > maxSeen {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(nb.nodes)), func(a, b ring.NodeID) int {
			return int(min(max(nb.nodes[a].Last-nb.nodes[b].Last, -1), 1))
		})
		delete(nb.nodes, oldest)
	}

	for month, theirs := range other.Exports {
		if theirs.isAfter(nb.exports[month]) && month >= firstYear*12 && month <= lastYear*12+11 {
			nb.exports[month] = theirs
			news = true
		}
	}
	return news
}

// load adds what earlier processes had written, once. The caller must hold mu.
func (nb *notebook) load(m *Meter) {
	if nb.loaded {
		return
	}

	var stored notes
	err := m.file.View(func(tx persist.Tx) error {
		b, err := tx.Get(notesBucket, notesKey)
		if err == nil && b != nil {
			_ = json.Unmarshal(b, &stored) // notes that can't be read count as none
		}
		return err
	})
	if err == nil {
		nb.merge(&stored)
		nb.loaded = true
	}
}

// save writes the notes if they are worth a write. A node that has counted
// nothing and holds no copies has no file, and gets none. The caller must hold
// mu.
func (nb *notebook) save(m *Meter) {
	if !nb.unsaved || !nb.loaded || m.file.HasNoFile() {
		return
	}

	b, err := json.Marshal(notes{Nodes: nb.nodes, Exports: nb.exports})
	if err == nil {
		err = m.file.Update(func(tx persist.Tx) error { return tx.Put(notesBucket, notesKey, b) })
	}
	if err == nil {
		nb.unsaved = false
	}
}

// saveNotes writes the notes if there is a file now.
func (t *Totals) saveNotes() {
	t.notes.mu.Lock()
	defer t.notes.mu.Unlock()
	t.notes.save(t.meter)
}

// recordMembers records which nodes are members now.
func (t *Totals) recordMembers() {
	nb := &t.notes
	m := t.meter
	now := m.config.Now()

	nb.mu.Lock()
	defer nb.mu.Unlock()
	nb.load(m)

	members := t.members()
	for _, member := range members {
		seen, known := nb.nodes[member.ID]
		if !known && !member.InRing {
			continue
		}
		if !known {
			seen.First = now
			nb.unsaved = true
		}

		seen.Name = member.Name
		seen.Last = max(seen.Last, now)
		seen.Gone = 0
		nb.nodes[member.ID] = seen
	}

	for id, seen := range nb.nodes {
		if seen.Gone == 0 && !isMember(members, id) {
			seen.Gone = max(seen.Last, now)
			nb.nodes[id] = seen
			nb.unsaved = true
		}
	}

	// When nodes were last seen is worth a write only at the turn of a month: a
	// bill needs to know no more than the month.
	current := MonthOf(now)
	if current != nb.noted {
		nb.noted = current
		nb.unsaved = true
	}

	oldest := (current - Month(m.config.Months)).Begin()
	maps.DeleteFunc(nb.nodes, func(_ ring.NodeID, sn seenNode) bool { return sn.Last < oldest })
	maps.DeleteFunc(nb.exports, func(month Month, _ exported) bool { return (month + 1).Begin() < oldest })
	nb.save(m)
}

// currentNotes returns the notes to send, with the records that are settled.
func (t *Totals) currentNotes() *notes {
	nb := &t.notes
	nb.mu.Lock()
	current := &notes{Nodes: maps.Clone(nb.nodes), Exports: maps.Clone(nb.exports)}
	nb.mu.Unlock()

	for _, r := range t.processRecords.list() {
		if r.EndIsFinal {
			current.Records = append(current.Records, &r)
		}
	}
	return current
}

// mergeNotes adds what another node knows.
func (t *Totals) mergeNotes(other *notes) {
	nb := &t.notes
	nb.mu.Lock()
	if nb.merge(other) {
		nb.unsaved = true
	}
	nb.save(t.meter)
	nb.mu.Unlock()

	t.mergeRecords(other.Records)
}

// answerNotes adds another node's notes, and answers with this node's.
func (t *Totals) answerNotes(body []byte) ([]byte, error) {
	var theirs notes
	if err := json.Unmarshal(body, &theirs); err != nil {
		return nil, errMessage
	}

	// The answer is made first, because the other node knows its own notes
	// already.
	reply, err := json.Marshal(t.currentNotes())
	t.mergeNotes(&theirs)
	return reply, err
}

// exchangeNotes exchanges notes with another node.
func (t *Totals) exchangeNotes(ctx context.Context, with Member) error {
	body, err := json.Marshal(t.currentNotes())
	if err != nil {
		return err
	}

	reply, err := t.ask(ctx, with, MethodNotes, body)
	if err != nil {
		return err
	}

	var theirs notes
	if err := json.Unmarshal(reply, &theirs); err != nil {
		return err
	}

	t.mergeNotes(&theirs)
	return nil
}

// shareNotes notes who is a member, and exchanges notes with one other node, each in turn.
func (t *Totals) shareNotes(turn int) {
	t.recordMembers()
	alive := slices.DeleteFunc(t.candidates(), func(member Member) bool { return !member.Alive })
	if len(alive) == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(t.ctx, copyTimeout)
	defer cancel()
	with := alive[turn%len(alive)]
	if err := t.exchangeNotes(ctx, with); err != nil {
		t.meter.config.Logger.Debug("can't exchange notes about usage", "node", with.Name, "error", err)
	}
}

// recordExport records that a month was exported.
func (t *Totals) recordExport(month Month, digest uint64) {
	nb := &t.notes
	nb.mu.Lock()
	defer nb.mu.Unlock()
	nb.exports[month] = exported{At: t.meter.config.Now(), Digest: digest}
	nb.unsaved = true
	nb.save(t.meter)
}

// revisedAt returns when the month was last found to have changed since its
// last export; zero if it has not, or was never exported. complete means that
// digest is of all ledgers of the month: only then does it show a change.
func (t *Totals) revisedAt(month Month, e exported, digest uint64, complete bool) time.Time {
	switch {
	case e.At == 0 || complete && e.Digest == digest:
		return time.Time{}
	case complete && e.Revised != digest:
		nb := &t.notes
		nb.mu.Lock()
		defer nb.mu.Unlock()
		e.Revised = digest
		e.RevisedAt = t.meter.config.Now()
		nb.merge(&notes{Exports: map[Month]exported{month: e}})
		nb.unsaved = true
		nb.save(t.meter)
	}

	if e.RevisedAt == 0 {
		return time.Time{}
	}
	return time.Unix(0, e.RevisedAt).UTC()
}
