package rules

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules/document"
)

// ErrConflict means that the version in force is not the one that a write was made for.
var ErrConflict = errors.New("the rules have changed in the meantime")

const (
	// KeptVersions is how many versions are kept, as long as their compressed texts
	// take at most MaxHistory bytes.
	KeptVersions = 50
	// MinVersions is how many versions are kept, whatever their size.
	MinVersions = 10
	// MaxHistory bounds the compressed texts of all kept versions, in bytes, if
	// there are more than MinVersions.
	MaxHistory = 32 << 20

	// Bounds of a version's texts, in bytes.
	maxBy   = 256
	maxWhat = 256
	// MaxMessage bounds Version.Message, in bytes.
	MaxMessage = 1024
)

// The ways in which rules are written; see Version.Via.
const (
	ViaAPI       = ""          // a request to the admin plane that names no other way
	ViaApply     = "apply"     // rlnode apply
	ViaRollback  = "rollback"  // rlnode rollback
	ViaRestore   = "restore"   // rlnode restore
	ViaDashboard = "dashboard" // the dashboard
	ViaSeed      = "seed"      // the first rules of a new cluster
)

// IsVia reports whether via is one of the ways in which rules are written.
func IsVia(via string) bool {
	return slices.Contains([]string{ViaAPI, ViaApply, ViaRollback, ViaRestore, ViaDashboard, ViaSeed}, via)
}

// Version is one version of the rules.
type Version struct {
	Number int64     `json:"version"` // from 1
	When   time.Time `json:"when"`
	By     string    `json:"by"`   // the author, at most 256 bytes
	What   string    `json:"what"` // what changed, such as "rule login", at most 256 bytes
	Size   int       `json:"size"` // of the change, in bytes

	Message string `json:"message,omitempty"` // why, in the author's words; at most MaxMessage bytes
	Via     string `json:"via,omitempty"`     // how it was written
	// Applied is the last version up to this one that somebody has in a file: it
	// was written as a whole, and not from the dashboard. 0 if there is none.
	Applied int64 `json:"applied"`
}

// Writer names the author of v and how it was written, such as "ann, dashboard".
func (v *Version) Writer() string {
	switch {
	case v.Via == "":
		return v.By
	case v.By == "":
		return v.Via
	}
	return v.By + ", " + v.Via
}

// Write is a change and the conditions for making it.
type Write struct {
	Change  document.Change
	IfMatch int64 // the version that must be in force; 0 for any
	// OnlyFirst makes the write fail unless it becomes version 1. It seeds rules
	// where there are none.
	OnlyFirst bool
	By        string    // the author; cut to 256 bytes
	Message   string    // why; cut to MaxMessage bytes
	Via       string    // how it is written
	When      time.Time // kept to the millisecond
}

// History is the rules and their last versions. It is immutable: a write
// returns a new History that shares the old versions. The zero value has no
// version, like the result of [NewHistory].
//
// A History depends on the writes alone. Nodes that apply the same writes have
// the same History, even if some of them began with an encoded History.
type History struct {
	versions []*storedVersion // the kept versions; numbers rise by 1, or by more for adopted versions
	// doc and set are the version in force, or nil without one. Invariant: doc is
	// what parsing the last version's text gives.
	doc  *document.Document
	set  *Set
	hash [32]byte // of doc; zero if there is none
}

// storedVersion is a stored version.
type storedVersion struct {
	Version
	packed []byte // the document's text, compressed
}

// NewHistory returns a history without a version.
func NewHistory() *History { return &History{} }

// Write returns the history with one more version. The error wraps
// [ErrConflict] or [document.ErrNotFound], or is of type [document.Errors].
func (h *History) Write(w Write) (*History, error) {
	have := h.currentNumber()
	switch {
	case w.OnlyFirst && have != 0:
		return nil, fmt.Errorf("%w: version %d is already in force", ErrConflict, have)
	case w.IfMatch != 0 && w.IfMatch != have:
		return nil, fmt.Errorf("%w: version %d is in force, not %d", ErrConflict, have, w.IfMatch)
	}

	base := h.doc
	// A piece may be written before there is any document.
	if base == nil {
		var err error
		base, err = document.Parse([]byte("version: 1\n"))
		if err != nil {
			return nil, asErrors(err)
		}
	}

	doc, err := base.WithChange(w.Change)
	switch {
	case errors.Is(err, document.ErrNotFound):
		return nil, err
	case err != nil:
		return nil, asErrors(err)
	}

	v := Version{
		Number: have + 1, When: toMillisecond(w.When),
		By: truncate(w.By, maxBy), What: truncate(w.Change.What(), maxWhat), Size: len(w.Change.Body),
		Message: truncate(w.Message, MaxMessage), Via: w.Via, Applied: h.lastApplied(),
	}
	if w.Change.Part == document.WholeDocument && w.Via != ViaDashboard {
		v.Applied = v.Number
	}

	return h.withVersion(v, doc)
}

// lastApplied returns Version.Applied of the version in force, or 0 before the first.
func (h *History) lastApplied() int64 {
	_, v := h.Current()
	return v.Applied
}

// Adopt returns the history with a version that was written elsewhere, as a
// whole document and under the number it has there. v.Number must be above the
// version in force; numbers may be skipped. With replace, Adopt drops the
// previous history. The error wraps [ErrConflict] or is of type [document.Errors].
func (h *History) Adopt(v Version, text string, replace bool) (*History, error) {
	if replace {
		h = &History{}
	}

	// No number could come after the largest.
	if v.Number <= h.currentNumber() || v.Number == math.MaxInt64 {
		return nil, fmt.Errorf("%w: version %d does not come after %d", ErrConflict, v.Number, h.currentNumber())
	}

	doc, err := document.Parse([]byte(text))
	if err != nil {
		return nil, asErrors(err)
	}

	v.When = toMillisecond(v.When)
	v.By, v.What = truncate(v.By, maxBy), truncate(v.What, maxWhat)
	v.Message = truncate(v.Message, MaxMessage)
	v.Via, v.Applied = truncate(v.Via, maxWhat), min(max(v.Applied, 0), v.Number)

	return h.withVersion(v, doc)
}

// Reissue returns the history with one more version of the same document.
// Something else that is committed together with the rules has changed; what
// and by describe that change.
func (h *History) Reissue(what, by string, when time.Time) (*History, error) {
	if h.doc == nil {
		return nil, fmt.Errorf("%w: there are no rules", ErrConflict)
	}
	v := Version{
		Number: h.currentNumber() + 1, When: toMillisecond(when), By: truncate(by, maxBy),
		What:    truncate(what, maxWhat),
		Applied: h.lastApplied(),
	}
	if v.Applied == h.currentNumber() {
		v.Applied = v.Number // nobody has changed the document since
	}
	return h.withVersion(v, h.doc)
}

// withVersion returns h with one more version, v, whose document is doc.
func (h *History) withVersion(v Version, doc *document.Document) (*History, error) {
	set, err := Compile(doc, v.Number)
	if err != nil {
		return nil, asErrors(err)
	}
	// Another write may begin with the same history, so its array must not be
	// appended to in place.
	versions := append(slices.Clip(h.versions), &storedVersion{v, slices.Clone(wire.Deflate(nil, []byte(doc.Source())))})
	return &History{versions: trimVersions(versions), doc: doc, set: set, hash: doc.Hash()}, nil
}

// trimVersions drops the versions that are not kept any longer.
func trimVersions(versions []*storedVersion) []*storedVersion {
	size := 0
	first := len(versions)
	for first > 0 && len(versions)-first < KeptVersions {
		size += len(versions[first-1].packed)
		if size > MaxHistory && len(versions)-first >= MinVersions {
			break
		}
		first--
	}
	// The list is copied, so that what is dropped does not stay in memory.
	return slices.Clone(versions[first:])
}

// document reads the document of a version.
func (v *storedVersion) document() (*document.Document, error) {
	text, err := wire.Inflate(v.packed, document.MaxDocument)
	if err != nil {
		return nil, fmt.Errorf("unpack version %d of the rules: %w", v.Number, err)
	}
	doc, err := document.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read version %d of the rules: %w", v.Number, err)
	}
	return doc, nil
}

// Current returns the document in force and its version, or nil and the zero
// Version before the first.
func (h *History) Current() (*document.Document, Version) {
	if len(h.versions) == 0 {
		return nil, Version{}
	}
	return h.doc, h.versions[len(h.versions)-1].Version
}

// Hash returns the hash of the document in force, or zero before the first.
func (h *History) Hash() [32]byte { return h.hash }

// Set returns the compiled document in force, or nil before the first.
func (h *History) Set() *Set { return h.set }

// currentNumber returns the number of the version in force, or 0 before the first.
func (h *History) currentNumber() int64 {
	if len(h.versions) == 0 {
		return 0
	}
	return h.versions[len(h.versions)-1].Number
}

// Versions returns the kept versions, newest first: at most KeptVersions.
func (h *History) Versions() []Version {
	out := make([]Version, 0, len(h.versions))
	for _, v := range slices.Backward(h.versions) {
		out = append(out, v.Version)
	}
	return out
}

// DocumentAt returns the document of a kept version. The error wraps [document.ErrNotFound].
func (h *History) DocumentAt(n int64) (*document.Document, error) {
	i, ok := slices.BinarySearchFunc(h.versions, n, func(v *storedVersion, n int64) int { return cmp.Compare(v.Number, n) })
	switch {
	case !ok:
		return nil, fmt.Errorf("look for version %d of the rules: %w", n, document.ErrNotFound)
	case i == len(h.versions)-1:
		return h.doc, nil
	}
	return h.versions[i].document()
}

// asErrors converts any error to document.Errors, which can be reported to the writer.
func asErrors(err error) error {
	if known, ok := errors.AsType[document.Errors](err); ok {
		return known
	}
	return document.Errors{{Message: err.Error()}}
}

// toMillisecond cuts t to the millisecond, as an encoded history keeps it.
func toMillisecond(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

// truncate shortens s to at most n bytes of valid UTF-8.
func truncate(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
