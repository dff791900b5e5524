package agreement

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/rules"
)

// Bounds of an answer that is remembered, in bytes of text: all of them together take at most 32 MiB, and usually less
// than one.
const (
	maxAnswer = 4 << 10
	maxPhrase = 1 << 10 // of a path or a message
)

// answer is a Result as it is remembered.
type answer struct {
	Request RequestID    `json:"request"`
	Version int64        `json:"version,omitempty"`
	Error   string       `json:"error,omitempty"` // one of the words below, or none
	Text    string       `json:"text,omitempty"`
	Wrong   rules.Errors `json:"wrong,omitempty"` // of mistakes
}

// The words of answer.Error.
const (
	conflict = "conflict"
	notFound = "not found"
	mistakes = "mistakes"
	other    = "other"
)

// repeated is an error that was told before.
type repeated struct {
	text string
	kind error
}

func (e *repeated) Error() string { return e.text }
func (e *repeated) Unwrap() error { return e.kind }

// answered returns the answer to a request that was answered before, or nil.
func (s *State) answered(id RequestID) *answer {
	if id.IsZero() {
		return nil
	}
	i := slices.IndexFunc(s.answers, func(a *answer) bool { return a.Request == id })
	if i < 0 {
		return nil
	}
	return s.answers[i]
}

// remember adds an answer and lets go of the oldest if there are too many.
func (s *State) remember(id RequestID, r Result) {
	if id.IsZero() {
		return
	}
	a := &answer{Request: id, Version: r.Version}
	var wrong rules.Errors
	switch {
	case r.Err == nil:
	case errors.Is(r.Err, rules.ErrConflict):
		a.Error, a.Text = conflict, phrase(r.Err.Error())
	case errors.Is(r.Err, rules.ErrNotFound):
		a.Error, a.Text = notFound, phrase(r.Err.Error())
	case errors.As(r.Err, &wrong):
		a.Error, a.Wrong = mistakes, first(wrong)
	default:
		a.Error, a.Text = other, phrase(r.Err.Error())
	}
	kept := s.answers
	if len(kept) >= KeptRequests {
		kept = kept[len(kept)-KeptRequests+1:]
	}
	// A copy: other states may have the rest in common with this one.
	s.answers = append(slices.Clone(kept), a)
}

func (a *answer) result() Result {
	switch a.Error {
	case conflict:
		return Result{Err: &repeated{a.Text, rules.ErrConflict}}
	case notFound:
		return Result{Err: &repeated{a.Text, rules.ErrNotFound}}
	case mistakes:
		return Result{Err: a.Wrong}
	case other:
		return Result{Err: &repeated{a.Text, ErrRejected}}
	}
	return Result{Version: a.Version}
}

// first is the first mistakes, as many as an answer has room for, and the number of the others.
func first(wrong rules.Errors) rules.Errors {
	size := 0
	var out rules.Errors
	for i, e := range wrong {
		e.Path, e.Message = phrase(e.Path), phrase(e.Message)
		if size += len(e.Path) + len(e.Message); size > maxAnswer {
			return append(out, rules.Error{Message: fmt.Sprintf("and %d more", len(wrong)-i)})
		}
		out = append(out, e)
	}
	return out
}

// phrase is what is remembered of a text: the same after it was written as JSON and read.
func phrase(s string) string {
	if len(s) > maxPhrase {
		s = s[:maxPhrase]
	}
	return strings.ToValidUTF8(s, "")
}
