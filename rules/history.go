package rules

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// KeptVersions is the number of versions that can be read back.
	KeptVersions = 50
	// MaxHistory bounds the texts of all kept versions together, in bytes. Repeated rewrites of large documents leave
	// fewer than KeptVersions. The version in force is always kept, with what replaying it needs.
	MaxHistory = 64 << 20

	maxBy   = 256 // bytes of Version.By and Version.What
	maxWhat = 256

	// fullEvery is the number of changes after which a whole document is kept again. It bounds replaying.
	fullEvery = 16
	// maxChain bounds the changes since the last whole document if no newer one can be written because it would exceed
	// MaxDocument. Such a document was uploaded as a compact text; changes may still make it smaller.
	maxChain = 512
)

// Version is one version of the rules.
type Version struct {
	Number int64     `json:"version"` // from 1
	When   time.Time `json:"when"`
	By     string    `json:"by"`   // the author, at most 256 bytes
	What   string    `json:"what"` // what changed, such as "rule login", at most 256 bytes
	Size   int       `json:"size"` // of the change, in bytes
}

// Write is a change and the conditions for making it.
type Write struct {
	Change  Change
	IfMatch int64 // the version that must be in force; 0 for any
	// OnlyFirst makes the write fail unless it becomes version 1. It seeds rules where there are none.
	OnlyFirst bool
	By        string    // the author; cut to 256 bytes
	When      time.Time // kept to the millisecond
}

// History is the rules and their last versions. It is immutable: a write returns a new History that shares the old
// versions. The zero value has no version, like the result of [NewHistory].
//
// A History depends on the writes alone. Nodes that apply the same writes have the same History, whether they applied all
// of them or started from an encoded one.
type History struct {
	// chain holds the kept versions, preceded by those needed to replay the first of them. Numbers rise by 1, or by more
	// for adopted versions. The first record is a whole document.
	chain []*record
	// doc and set are the version in force, or nil without one. Invariant: doc equals the result of replaying.
	doc  *Document
	set  *Set
	hash [32]byte // of doc; zero if there is none
}

// record is a stored version. Small changes are stored as changes: fifty copies of an 8 MiB document would take 400 MiB.
type record struct {
	Version
	full   bool   // text is a whole document
	change Change // without its body; zero if full
	text   string // the document, or the body of the change from the version before
}

// NewHistory returns a history without a version.
func NewHistory() *History { return &History{} }

// Write returns the history with one more version. The error wraps [ErrConflict] or [ErrNotFound], or is of type
// [Errors].
func (h *History) Write(w Write) (*History, error) {
	have := h.currentNumber()
	switch {
	case w.OnlyFirst && have != 0:
		return nil, fmt.Errorf("%w: version %d is already in force", ErrConflict, have)
	case w.IfMatch != 0 && w.IfMatch != have:
		return nil, fmt.Errorf("%w: version %d is in force, not %d", ErrConflict, have, w.IfMatch)
	}
	base := h.doc
	if base == nil {
		var err error
		if base, err = Parse([]byte("version: 1\n")); err != nil {
			return nil, asErrors(err)
		}
	}
	doc, err := base.Apply(w.Change)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, err
	case err != nil:
		return nil, asErrors(err)
	}
	r := &record{Version: Version{
		Number: have + 1, When: toMillisecond(w.When),
		By: truncate(w.By, maxBy), What: truncate(describe(w.Change), maxWhat), Size: len(w.Change.Body),
	}}
	if doc, err = h.storeChange(r, doc, w.Change); err != nil {
		return nil, err
	}
	return h.withRecord(r, doc)
}

// Adopt returns the history with a version that was written elsewhere, as a whole document and under the number it has
// there. v.Number must be above the version in force; numbers may be skipped. With replace, Adopt drops the previous
// history. The error wraps [ErrConflict] or is of type [Errors].
func (h *History) Adopt(v Version, text string, replace bool) (*History, error) {
	if replace {
		h = &History{}
	}
	if v.Number <= h.currentNumber() || v.Number == math.MaxInt64 {
		return nil, fmt.Errorf("%w: version %d does not come after %d", ErrConflict, v.Number, h.currentNumber())
	}
	doc, err := Parse([]byte(text))
	if err != nil {
		return nil, asErrors(err)
	}
	v.When, v.By, v.What = toMillisecond(v.When), truncate(v.By, maxBy), truncate(v.What, maxWhat)
	return h.withRecord(&record{Version: v, full: true, text: doc.source}, doc)
}

// Renumber returns the history with one more version of the same document. Something else that is committed together with
// the rules has changed; what and by describe that change.
func (h *History) Renumber(what, by string, when time.Time) (*History, error) {
	if h.doc == nil {
		return nil, fmt.Errorf("%w: there are no rules", ErrConflict)
	}
	text, err := h.doc.Text()
	if err != nil {
		return nil, err
	}
	doc, err := Parse([]byte(text))
	if err != nil {
		return nil, asErrors(err)
	}
	v := Version{Number: h.currentNumber() + 1, When: toMillisecond(when), By: truncate(by, maxBy), What: truncate(what, maxWhat)}
	return h.withRecord(&record{Version: v, full: true, text: doc.source}, doc)
}

// withRecord returns h with one more version, r, whose document is doc.
func (h *History) withRecord(r *record, doc *Document) (*History, error) {
	set, err := Compile(doc, r.Number)
	if err != nil {
		return nil, asErrors(err)
	}
	return &History{chain: trimChain(append(slices.Clip(h.chain), r)), doc: doc, set: set, hash: doc.Hash()}, nil
}

// storeChange decides how to store r, and returns the document that replaying r will yield. It stores a whole document if
// c is one, if replaying would take too long, or if the changes since the last whole document are larger than a document.
func (h *History) storeChange(r *record, doc *Document, c Change) (*Document, error) {
	if c.Part == WholeDocument {
		r.full, r.text = true, doc.source
		return doc, nil
	}
	changes, size, document := 1, len(c.Body), 0
	for _, before := range slices.Backward(h.chain) {
		if before.full {
			document = len(before.text)
			break
		}
		changes++
		size += len(before.text)
	}
	// The first version has no document before it to replay from.
	first := len(h.chain) == 0
	if first || changes >= fullEvery || size > max(document, 4096) {
		whole, err := Parse(doc.fittingText())
		switch {
		case err == nil:
			r.full, r.text = true, whole.source
			return whole, nil
		case first || changes >= maxChain || size > MaxHistory:
			return nil, err
		}
	}
	r.change, r.text = c, string(c.Body)
	r.change.Body = nil
	return doc, nil
}

// trimChain drops versions that are neither kept any longer nor needed to replay the first kept one. The result begins with
// a whole document.
func trimChain(chain []*record) []*record {
	size, first := 0, len(chain)
	for i, r := range slices.Backward(chain) {
		if size += len(r.text); !r.full {
			continue
		}
		if size > MaxHistory && first < len(chain) {
			break
		}
		if first = i; len(chain)-i >= KeptVersions {
			break
		}
	}
	return slices.Clone(chain[first:])
}

// Current returns the document in force and its version, or nil and the zero Version before the first.
func (h *History) Current() (*Document, Version) {
	if len(h.chain) == 0 {
		return nil, Version{}
	}
	return h.doc, h.chain[len(h.chain)-1].Version
}

// Hash returns the hash of the document in force, or zero before the first.
func (h *History) Hash() [32]byte { return h.hash }

// Set returns the compiled document in force, or nil before the first.
func (h *History) Set() *Set { return h.set }

// currentNumber returns the number of the version in force, or 0 before the first.
func (h *History) currentNumber() int64 {
	if len(h.chain) == 0 {
		return 0
	}
	return h.chain[len(h.chain)-1].Number
}

// oldestKept returns the index of the oldest version that can be read back.
func (h *History) oldestKept() int { return max(0, len(h.chain)-KeptVersions) }

// Versions returns the kept versions, newest first: at most KeptVersions.
func (h *History) Versions() []Version {
	out := make([]Version, 0, len(h.chain)-h.oldestKept())
	for _, r := range slices.Backward(h.chain[h.oldestKept():]) {
		out = append(out, r.Version)
	}
	return out
}

// Version returns the document of a kept version. The error wraps [ErrNotFound].
func (h *History) Version(n int64) (*Document, error) {
	i, ok := slices.BinarySearchFunc(h.chain, n, func(r *record, n int64) int { return cmp.Compare(r.Number, n) })
	switch {
	case !ok || i < h.oldestKept():
		return nil, fmt.Errorf("look for version %d of the rules: %w", n, ErrNotFound)
	case i == len(h.chain)-1:
		return h.doc, nil
	}
	return replay(h.chain, i)
}

// replay rebuilds the document of chain[last] from the last whole document up to it.
func replay(chain []*record, last int) (*Document, error) {
	first := last
	for first > 0 && !chain[first].full {
		first--
	}
	doc, err := Parse([]byte(chain[first].text))
	for _, r := range chain[first+1 : last+1] {
		if err != nil {
			break
		}
		c := r.change
		c.Body = []byte(r.text)
		doc, err = doc.Apply(c)
	}
	if err != nil {
		return nil, fmt.Errorf("rebuild version %d of the rules: %w", chain[last].Number, err)
	}
	return doc, nil
}

// asErrors converts any error to Errors, which can be reported to the writer.
func asErrors(err error) error {
	if known, ok := errors.AsType[Errors](err); ok {
		return known
	}
	return Errors{{Message: err.Error()}}
}

// toMillisecond rounds t to what encoding and decoding preserve.
func toMillisecond(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

// describe names what a change changes: "document", "rule login", "delete tier free", "subject tenant acme".
func describe(c Change) string {
	if c.Part == WholeDocument {
		return partNames[c.Part]
	}
	var words []string
	if c.Delete {
		words = append(words, "delete")
	}
	for _, w := range []string{partNames[c.Part], c.Attribute, c.Name} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// truncate shortens s to at most n bytes of valid UTF-8.
func truncate(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
