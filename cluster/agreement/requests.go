package agreement

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// Bounds of a remembered answer, in bytes of text. All answers together take at
// most 32 MiB, and usually less than 1 MiB.
const (
	maxAnswer = 4 << 10
	maxPhrase = 1 << 10 // bounds a path or a message
)

// answer is the outcome of a request.
type answer struct {
	Request RequestID `json:"request"`
	Result  Result    `json:"result"`
}

// resultText is the JSON form of a Result.
type resultText struct {
	Version int64           `json:"version,omitempty"`
	Error   string          `json:"error,omitempty"` // one of the words below, or empty
	Text    string          `json:"text,omitempty"`
	Wrong   document.Errors `json:"wrong,omitempty"` // the mistakes in a document
}

// errorKinds are the words of resultText.Error; the last stands for all others.
var errorKinds = []struct {
	word string
	kind error
}{
	{"conflict", rules.ErrConflict}, {"not found", document.ErrNotFound},
	{"full", entries.ErrFull}, {"no entry", entries.ErrNotFound}, {"scope", entries.ErrScope},
	{"invalid", entries.ErrInvalid},
	{"other", ErrRejected},
}

// kindOfError returns an error's index in errorKinds: the last if none fits.
func kindOfError(err error) int {
	for i, e := range errorKinds {
		if errors.Is(err, e.kind) {
			return i
		}
	}
	return len(errorKinds) - 1
}

// MarshalJSON encodes an error as document.Errors, or as its text and a word of
// errorKinds.
func (res Result) MarshalJSON() ([]byte, error) {
	t := resultText{Version: res.Version}
	if res.Err != nil && !errors.As(res.Err, &t.Wrong) {
		t.Error = errorKinds[kindOfError(res.Err)].word
		t.Text = res.Err.Error()
	}
	return json.Marshal(t)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (res *Result) UnmarshalJSON(b []byte) error {
	var t resultText
	if err := wire.StrictJSON(b, &t); err != nil {
		return err
	}

	*res = Result{Version: t.Version}
	if len(t.Wrong) > 0 {
		res.Err = t.Wrong
		return nil
	}

	for _, e := range errorKinds {
		if e.word == t.Error {
			res.Err = &ReportedError{t.Text, e.kind}
		}
	}

	if t.Error != "" && res.Err == nil {
		return fmt.Errorf("unknown kind of error %.64q in a result", t.Error)
	}

	return nil
}

// ReportedError is an error that was remembered, or that another node reported.
// Of the original error, it wraps only the kind, such as ErrRejected.
type ReportedError struct {
	Text string
	Kind error
}

// Error returns the text as it was reported.
func (e *ReportedError) Error() string { return e.Text }

// Unwrap returns the kind.
func (e *ReportedError) Unwrap() error { return e.Kind }

// answerTo returns the remembered answer to a request, or nil.
func (s *State) answerTo(id RequestID) *answer {
	if id.IsZero() {
		return nil
	}
	i := slices.IndexFunc(s.Answers, func(a *answer) bool { return a.Request == id })
	if i < 0 {
		return nil
	}
	return s.Answers[i]
}

// rememberAnswer adds an answer, and drops the oldest one if there are too many.
func (s *State) rememberAnswer(id RequestID, r Result) {
	if id.IsZero() {
		return
	}

	a := &answer{Request: id, Result: r}
	if wrong, ok := errors.AsType[document.Errors](r.Err); ok {
		a.Result.Err = firstMistakes(wrong)
	} else if r.Err != nil {
		a.Result.Err = &ReportedError{truncatePhrase(r.Err.Error()), errorKinds[kindOfError(r.Err)].kind}
	}

	kept := s.Answers
	if len(kept) >= KeptAnswers {
		kept = kept[len(kept)-KeptAnswers+1:]
	}

	// The slice is copied, because other states may share it.
	s.Answers = append(slices.Clone(kept), a)
}

// firstMistakes returns as many of the first mistakes as fit in an answer, and
// the number of the others.
func firstMistakes(wrong document.Errors) document.Errors {
	size := 0
	var first document.Errors
	for i, e := range wrong {
		e.Path = truncatePhrase(e.Path)
		e.Message = truncatePhrase(e.Message)
		size += len(e.Path) + len(e.Message)
		if size > maxAnswer {
			return append(first, document.Error{Message: fmt.Sprintf("and %d more", len(wrong)-i)})
		}
		first = append(first, e)
	}
	return first
}

// truncatePhrase truncates a text to the part that is remembered. The result
// survives a JSON round trip unchanged.
func truncatePhrase(s string) string {
	if len(s) > maxPhrase {
		s = s[:maxPhrase]
	}
	return strings.ToValidUTF8(s, "")
}
