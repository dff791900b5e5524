package agreement

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
)

// ErrBase reports that the state an entry was proposed for has changed. The entry changed nothing, and is proposed again
// for the new state. ErrBase wraps ErrRejected.
var ErrBase = fmt.Errorf("%w: the rules, or the regions that share them, have changed since it was proposed", ErrRejected)

// ErrDiffers reports that an entry has another result here than where it was proposed.
var ErrDiffers = errors.New("an entry has another result here than where it was proposed")

// Edition identifies the rules in force and the agreed regions: everything that the result of changing either depends on.
type Edition struct {
	Number int64 // of the version in force
	Hash   [sha256.Size]byte
}

// Transition are the state that an entry which may change rules or regions was proposed for, and its result. Every node parses
// rules when it applies them: builds that read them differently would diverge.
type Transition struct{ Base, Result Edition }

// Edition returns the edition of s.
func (s *State) Edition() (Edition, error) {
	_, v := s.History.Current()
	document := s.History.Hash()
	text, err := json.Marshal(s.Regions)
	if err != nil {
		return Edition{}, fmt.Errorf("write what is agreed about regions: %w", err)
	}
	return Edition{Number: v.Number, Hash: sha256.Sum256(append(document[:], text...))}, nil
}

func (t *Transition) append(b []byte) []byte {
	for _, e := range []Edition{t.Base, t.Result} {
		b = binary.BigEndian.AppendUint64(b, uint64(e.Number))
		b = append(b, e.Hash[:]...)
	}
	return b
}

// decodeTerms reads the terms; nil if there are none.
func decodeTerms(d *wire.Decoder) *Transition {
	if !d.Bool() {
		return nil
	}
	t := new(Transition)
	for _, e := range []*Edition{&t.Base, &t.Result} {
		e.Number = int64(d.BigUint64())
		d.Fill(e.Hash[:])
	}
	return t
}

// changesRules reports whether entries of this kind may change rules or regions.
func changesRules(e Entry) bool {
	switch e.(type) {
	case Rules, Primary, Region, Mark, Adopt:
		return true
	}
	return false
}

// Propose writes an entry as a leader proposes it in state s: one that may change rules or regions carries its terms.
// Propose also returns the prepared result: applying Rules then takes no time, and a refused entry need not be proposed.
func (b *Build) Propose(s *State, e Entry) ([]byte, *Prepared, error) {
	if !changesRules(e) {
		out, err := b.Encode(e)
		return out, nil, err
	}
	var terms Transition
	var err error
	if terms.Base, err = s.Edition(); err != nil {
		return nil, nil, err
	}
	next := *s
	next.Index++
	p := &Prepared{before: s.History}
	if w, write := e.(Rules); !write {
		p.refused = e.apply(&next).Err
	} else if s.answered(w.Request) == nil {
		p = s.Prepare(w)
		p.refused = w.enact(&next, p.after, p.err).Err
	}
	p.regions = s.Regions
	if terms.Result, err = next.Edition(); err != nil {
		return nil, nil, err
	}
	out, err := b.encode(e, &terms)
	return out, p, err
}

// applyOn applies an entry with terms. next is s with the entry's index. If the error wraps ErrDiffers, s stays in force.
func (t *Transition) applyOn(s, next *State, apply func() Result) (Result, error) {
	base, err := s.Edition()
	if err != nil {
		return Result{}, err
	}
	if base != t.Base {
		return Result{Err: ErrBase}, nil
	}
	r := apply()
	have, err := next.Edition()
	if err != nil {
		return Result{}, err
	}
	if have != t.Result {
		return Result{}, fmt.Errorf("%w: version %d with hash %x, and not version %d with hash %x", ErrDiffers,
			have.Number, have.Hash, t.Result.Number, t.Result.Hash)
	}
	return r, nil
}
