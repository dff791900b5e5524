package agreement

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules/document"
)

// An entry is written as:
//
//	byte 0    entryMark
//	byte 1    kind: its place in kinds
//	byte 2    entryFormat
//	uvarint   the feature level needed to read it
//	uvarint   length of the release
//	release   the release that wrote it, text
//	byte      1 if the entry has a Transition, else 0
//	80 bytes  the Transition, if any; numbers big endian
//	uvarint   length of the JSON
//	JSON      the entry
//	tail      for WriteRules the change's body, for Adopt the documents, else nothing
//
// Every release writes everything up to the release in this way. So a build
// that can't read the rest can still say which release can.
const (
	entryMark   = 0xe7 // no kind has this number: old entries begin with their kind
	entryFormat = 2

	maxHead = 64 << 10 // bounds the JSON of WriteRules, in bytes
)

// kinds has an entry of each kind at its number. The numbers are part of the
// format, so append new kinds at the end.
var kinds = [...]Entry{
	1: FoundCluster{}, Empty{}, Ring{}, Leave{}, SettleMove{}, EndNode{}, Forget{}, WriteRules{},
	RegisterProcess{}, Reign{}, SetPrimary{}, ChangeRegion{}, Mark{},
	Adopt{}, Skipped{}, Raise{}, ChangeEntries{}, ExpireEntries{}, AdoptEntries{}, Depart{},
}

// ErrEntry means that bytes or a value are not a valid entry.
var ErrEntry = errors.New("not an entry")

// kindOf returns the number of an entry's kind, or -1 if e is not an entry.
func kindOf(e Entry) int {
	return slices.IndexFunc(kinds[:], func(k Entry) bool { return k != nil && reflect.TypeOf(k) == reflect.TypeOf(e) })
}

// neededLevel returns the feature level needed to read an entry.
func neededLevel(e Entry) Level {
	switch e := e.(type) {
	case Raise:
		return max(1, e.Level) // a node that doesn't know the level must stop here, not at a later entry
	case FoundCluster:
		return max(1, e.Level)
	}
	return 1
}

// Encode encodes an entry, with its origin. The error wraps [ErrEntry].
func (b *Build) Encode(e Entry) ([]byte, error) { return b.encode(e, nil) }

// encode encodes an entry with its transition, which may be nil.
func (b *Build) encode(e Entry, transition *Transition) ([]byte, error) {
	kind := kindOf(e)
	if kind < 1 {
		return nil, fmt.Errorf("%w: %T", ErrEntry, e)
	}

	head := b.appendOrigin([]byte{entryMark, byte(kind), entryFormat}, neededLevel(e))
	head = wire.AppendBool(head, transition != nil)
	if transition != nil {
		for _, e := range []Edition{transition.Base, transition.Result} {
			head = append(binary.BigEndian.AppendUint64(head, uint64(e.Number)), e.Hash[:]...)
		}
	}
	return appendBody(head, e)
}

// appendBody appends an entry's JSON, with its length, and its tail.
func appendBody(b []byte, e Entry) ([]byte, error) {
	var tail []byte
	most := math.MaxInt
	switch x := e.(type) {
	case WriteRules:
		if !utf8.ValidString(x.Change.Name) {
			// JSON would replace invalid bytes, and so change the name.
			return nil, fmt.Errorf("%w: the name of a part of the rules must be valid UTF-8", ErrEntry)
		}
		tail = x.Change.Body
		if len(tail) > document.MaxDocument {
			return nil, fmt.Errorf("%w: the change has %d bytes, more than %d", ErrEntry, len(tail), document.MaxDocument)
		}
		x.Change.Body = nil
		x.When = inMillis(x.When)
		e = x
		most = maxHead
	case Adopt:
		var err error

		tail, err = packDocuments(x.Held)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEntry, err)
		}
		x.InForce.When = inMillis(x.InForce.When)
		e = x
		most = MaxAdopt - len(tail)
	case ChangeEntries, AdoptEntries:
		most = MaxEntriesChange
	}

	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	if len(text) > most {
		return nil, fmt.Errorf("%w: its JSON has %d bytes, more than %d", ErrEntry, len(text), most)
	}

	b = slices.Grow(b, binary.MaxVarintLen64+len(text)+len(tail))
	return append(wire.AppendText(b, text), tail...), nil
}

// inMillis truncates a time to the precision of entries, which is milliseconds, in UTC.
func inMillis(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

// Decode is the inverse of Encode. The body of a change of rules aliases the
// argument. The error is an [*Unreadable] that wraps [ErrEntry].
func (b *Build) Decode(entry []byte) (Entry, error) {
	w, err := b.decode(entry)
	return w.Entry, err
}

// stampedEntry is an entry with its origin and its transition.
type stampedEntry struct {
	Entry
	level      Level // the level needed to read it
	release    string
	transition *Transition // nil if there is none
}

func (b *Build) decode(entry []byte) (stampedEntry, error) {
	if len(entry) < 3 || entry[0] != entryMark {
		err := fmt.Errorf("%w: it is damaged, or of a release without feature levels", ErrEntry)
		return stampedEntry{}, b.unreadable(0, "", err)
	}

	d := wire.NewDecoder(entry[3:])
	level, release, err := decodeOrigin(d)
	w := stampedEntry{level: level, release: release}
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrEntry, err)
	case level > b.Level:
		err = fmt.Errorf("%w: kind %d needs a newer build", ErrEntry, entry[1])
	case entry[2] != entryFormat:
		err = fmt.Errorf("%w: unknown format %d of kind %d", ErrEntry, entry[2], entry[1])
	default:
		w.transition = decodeTransition(d)
		if d.Failed() {
			err = fmt.Errorf("%w: truncated or unknown transition", ErrEntry)
		} else {
			w.Entry, err = decodeBody(int(entry[1]), d.Rest())
		}
		if err == nil && neededLevel(w.Entry) > level {
			err = fmt.Errorf("%w: level %d needed, but %d stated", ErrEntry, neededLevel(w.Entry), level)
		}
	}

	if err == nil && b.Lacks != nil && b.Lacks(fmt.Sprintf("%T", w.Entry)) {
		err = fmt.Errorf("%w: unknown kind %d", ErrEntry, entry[1])
	}
	if err != nil {
		return stampedEntry{}, b.unreadable(level, release, err)
	}

	return w, nil
}

// CheckProposable returns an error if a leader must not propose an entry in
// state s: this build could not read it, or a build that knows only the agreed
// level could not.
func (b *Build) CheckProposable(s *State, entry []byte) error {
	w, err := b.decode(entry)
	if err != nil {
		return err
	}
	return s.checkLevel(w.Entry, w.level)
}

// decodeBody is the inverse of appendBody, for an entry of the given kind.
func decodeBody(kind int, b []byte) (Entry, error) {
	if kind < 1 || kind >= len(kinds) {
		return nil, fmt.Errorf("%w: unknown kind %d", ErrEntry, kind)
	}

	d := wire.NewDecoder(b)
	text, tail := d.View(math.MaxInt), d.Rest()
	if d.Failed() {
		return nil, fmt.Errorf("%w: %T is truncated", ErrEntry, kinds[kind])
	}

	to := reflect.New(reflect.TypeOf(kinds[kind]))
	if err := wire.StrictJSON(text, to.Interface()); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrEntry, kinds[kind], err)
	}

	switch e := to.Interface().(type) {
	case *WriteRules:
		if e.Change.Part > document.ListPart {
			return nil, fmt.Errorf("%w: rules: unknown part %d", ErrEntry, e.Change.Part)
		}
		e.Change.Body = tail
		e.When = inMillis(e.When)
	case *Adopt:
		e.InForce.When = inMillis(e.InForce.When)
		if err := unpackDocuments(tail, e.Held); err != nil {
			return nil, fmt.Errorf("%w: rules to adopt: %w", ErrEntry, err)
		}
	default:
		if len(tail) > 0 {
			return nil, fmt.Errorf("%w: %d bytes after %T", ErrEntry, len(tail), kinds[kind])
		}
	}

	return to.Elem().Interface().(Entry), nil
}
