package entries

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/rlnode/rlnode/internal/wire"
)

// head begins an encoded State.
type head struct {
	Version int64  `json:"version"`
	Digest  Digest `json:"digest"`
	Entries int    `json:"entries"`
	Changes int    `json:"changes"`
}

// AppendBinary appends s to b: a head, each entry in the order of IDs, and each
// record of the log with its digest. Equal states have equal bytes.
func (s *State) AppendBinary(b []byte) ([]byte, error) {
	b, err := appendJSON(b, head{s.version, s.digest, s.Len(), s.log.n})
	if err != nil {
		return nil, err
	}

	for _, e := range s.Sorted() {
		b, err = appendJSON(b, e)
		if err != nil {
			return nil, err
		}
	}

	for _, chunk := range s.log.chunks {
		for i := range chunk {
			b, err = appendJSON(b, &chunk[i])
			if err != nil {
				return nil, err
			}
			b = append(b, chunk[i].digest[:]...)
		}
	}

	return b, nil
}

func appendJSON(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode entries: %w", err)
	}
	return wire.AppendText(b, text), nil
}

// Parse is the inverse of AppendBinary. The error says what is wrong with b; it
// wraps ErrInvalid if an entry breaks a bound or the parts contradict each
// other.
func Parse(b []byte) (*State, error) {
	d := wire.NewDecoder(b)
	var h head
	if err := readJSON(d, &h); err != nil {
		return nil, err
	}
	if h.Version < 0 || h.Entries < 0 || h.Entries > 2*MaxEntries || h.Changes < 0 ||
		h.Changes > 2*MaxChanges || int64(h.Changes) > h.Version {
		return nil, fmt.Errorf("%w: %d entries after %d of %d changes", ErrInvalid, h.Entries, h.Changes, h.Version)
	}

	s := &State{}
	s.edit()
	for range h.Entries {
		e := &Entry{}
		if err := readJSON(d, e); err != nil {
			return nil, err
		}
		if err := e.Check(); err != nil {
			return nil, err
		}
		e = e.withID()
		if s.Get(e.id) != nil {
			return nil, fmt.Errorf("%w: %s appears twice", ErrInvalid, shorten(e.id))
		}

		s.put(e)
	}
	s.done()

	for i := range h.Changes {
		var r Record
		if err := readJSON(d, &r); err != nil {
			return nil, err
		}
		d.Fill(r.digest[:])
		if r.Version != h.Version-int64(h.Changes)+int64(i)+1 || r.Before == nil && r.After == nil {
			return nil, fmt.Errorf("%w: version %d is out of order", ErrInvalid, r.Version)
		}
		s.log = s.log.with(s.shared(r))
	}

	s.version, s.digest = h.Version, h.Digest
	if h.Changes > 0 {
		if last := s.RecordAt(h.Version); last == nil || last.digest != h.Digest {
			return nil, fmt.Errorf("%w: the log does not end with version %d", ErrInvalid, h.Version)
		}
	}

	return s, d.Done("entries")
}

// shared returns r with entries of s in place of equal ones, so that the log
// and the state keep each entry in memory once.
func (s *State) shared(r Record) Record {
	for _, e := range []**Entry{&r.Before, &r.After} {
		if *e == nil {
			continue
		}
		*e = (*e).withID()
		if have := s.Get((*e).id); have != nil && have.When == (*e).When && have.equal(*e) {
			*e = have
		}
	}
	return r
}

// equal reports whether both entries have the same content.
func (e *Entry) equal(other *Entry) bool {
	a, errA := json.Marshal(e)
	b, errB := json.Marshal(other)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// readJSON reads one strict JSON value.
func readJSON(d *wire.Decoder, to any) error {
	text := d.View(math.MaxInt)
	if d.Failed() {
		return d.Err()
	}

	if err := wire.StrictJSON(text, to); err != nil {
		return fmt.Errorf("decode entries: %w", err)
	}
	return nil
}
