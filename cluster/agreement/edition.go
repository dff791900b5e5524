package agreement

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
)

// ErrBase means that rules or regions have changed since the entry was
// proposed. The entry changed nothing, and its proposer must propose it again
// for the new state. ErrBase wraps ErrRejected.
var ErrBase = fmt.Errorf("%w: the rules, or the regions that share them, have changed since it was proposed", ErrRejected)

// ErrDiffers means that an entry has another result on this build than it had
// for its proposer.
var ErrDiffers = errors.New("an entry has another result than on the node that proposed it")

// Edition identifies the rules in force and the agreed regions. Every change of
// either starts from both.
type Edition struct {
	Number int64 // version in force
	Hash   [sha256.Size]byte
}

// Transition belongs to an entry that may change rules or regions. Base is the
// edition that the entry was proposed for, and Result the edition after it.
// Every node parses rules itself when it applies them. Without transitions,
// builds that parse rules differently would diverge unnoticed.
type Transition struct{ Base, Result Edition }

// Edition returns the edition of s.
func (s *State) Edition() (Edition, error) {
	_, v := s.History.Current()
	rulesHash := s.History.Hash()
	text, err := json.Marshal(s.Regions)
	if err != nil {
		return Edition{}, fmt.Errorf("encode the agreed regions: %w", err)
	}
	return Edition{Number: v.Number, Hash: sha256.Sum256(append(rulesHash[:], text...))}, nil
}

// decodeTransition reads the transition of an entry. It returns nil if there is none.
func decodeTransition(d *wire.Decoder) *Transition {
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
	case WriteRules, SetPrimary, ChangeRegion, Mark, Adopt:
		return true
	}
	return false
}

// Prepare encodes an entry for a leader to propose in state s. An entry that
// may change rules or regions carries its Transition. For such an entry,
// Prepare also returns the prepared result: applying WriteRules then takes no time,
// and the caller sees whether the entry would be refused. For other entries,
// the result is nil.
func (b *Build) Prepare(s *State, e Entry) ([]byte, *Prepared, error) {
	if !changesRules(e) {
		out, err := b.Encode(e)
		return out, nil, err
	}

	var transition Transition
	var err error

	transition.Base, err = s.Edition()
	if err != nil {
		return nil, nil, err
	}

	next := *s
	next.Index++
	p := &Prepared{before: s.History}
	write, isWrite := e.(WriteRules)
	// A repeated write changes nothing: it falls through both cases.
	switch {
	case !isWrite:
		p.refusal = e.apply(&next).Err
	case s.answerTo(write.Request) == nil:
		p = s.prepareWrite(write)
		p.refusal = write.finishWrite(&next, p.after, p.writeErr).Err
	}

	p.regions = s.Regions

	transition.Result, err = next.Edition()
	if err != nil {
		return nil, nil, err
	}

	out, err := b.encode(e, &transition)
	return out, p, err
}

// applyVerified applies an entry with a transition. next is a copy of s with the
// entry's index. On an error, the caller must discard next.
func (t *Transition) applyVerified(s, next *State, apply func() Result) (Result, error) {
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
		return Result{}, fmt.Errorf("%w: version %d with hash %x instead of version %d with hash %x", ErrDiffers,
			have.Number, have.Hash, t.Result.Number, t.Result.Hash)
	}

	return r, nil
}
