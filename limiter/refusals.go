package limiter

import (
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/rules"
)

// maxRefusalText bounds a value, and maxRefusalSubject roughly a whole subject, in a Refusal, in bytes.
const (
	maxRefusalText    = 128
	maxRefusalSubject = 512
)

// Refusal is a refused check, for a log.
type Refusal struct {
	DecidedBy DecidedBy // ByList or ByNone: there is no rule and no limit
	Rule      string
	// Subject has the values of the rule's key attributes; without a rule, the attributes that the rules look at, with their
	// names. What can't be printed is escaped, and what is long is cut.
	Subject    string
	Limit      int64  // the capacity of the limit that refused, in this region; of several, of the one with the longest RetryAfter
	Used       int64  // of it
	Unit       string // of both
	RetryAfter time.Duration
	More       int64 // how many more were refused likewise since the last Refusal of that rule
}

// refusals keeps the first refused check of one kind since the last one was taken. Refused checks only look at first.
type refusals struct {
	first atomic.Pointer[Refusal]
	taken int64 // how many were refused when first was last taken; guarded by Limiter.mu
}

// take returns the first refusal since the last call, or nil. refused is how many there are in all.
func (f *refusals) take(refused int64) *Refusal {
	r := f.first.Swap(nil)
	if r == nil || refused <= f.taken {
		return nil // the last one's More has it
	}
	r.More, f.taken = refused-f.taken-1, refused
	return r
}

// Refusals returns the first check that each rule has refused since the last call, and the first that a deny list and the
// default have. Peeks and what shadow rules would have refused are left out.
func (l *Limiter) Refusals() (all []*Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.inForce.Load()
	if b == nil {
		return nil
	}
	add := func(f *refusals, refused func() int64) {
		if f.first.Load() == nil {
			return // the usual case, without counting
		}
		if r := f.take(refused()); r != nil {
			all = append(all, r)
		}
	}
	for _, s := range b.stats {
		add(&s.refusals, func() (n int64) {
			for by := range ByList {
				n += s.refused(by)
			}
			return n
		})
	}
	add(&b.whole.refusals, func() int64 { return b.whole.refused(ByList) })
	add(&b.whole.byDefault, func() int64 { return b.whole.refused(ByNone) })
	return all
}

// refused returns how many checks were refused in that way.
func (s *ruleStats) refused(by DecidedBy) (n int64) {
	for i := range s.stripe {
		n += s.stripe[i].checks[DecisionRefused][by].Load()
	}
	return n
}

// noteRefusal keeps a check that h's rule has refused, if it is the first since Refusals was called.
func (s *ruleStats) noteRefusal(a *Answer, h *rules.Hit, limits []LimitAnswer, q *Query) {
	if s.refusals.first.Load() != nil {
		return
	}
	var t *LimitAnswer
	for i := range limits {
		if la := &limits[i]; !la.Allowed && (t == nil || la.Tighter(t)) {
			t = la
		}
	}
	r := &Refusal{
		DecidedBy: a.DecidedBy, Rule: h.Rule.Name, Limit: t.Limit.Capacity(), Used: t.Used, Unit: t.Limit.Unit, RetryAfter: t.RetryAfter,
	}
	var text []byte
	for _, value := range subjectText(h, q) {
		text = appendEscaped(text, "", value)
	}
	r.Subject = string(text)
	s.refusals.first.Store(r)
}

// noteDenial is noteRefusal for a check that no rule has refused.
func (s *ruleStats) noteDenial(a *Answer) {
	f := &s.refusals
	if a.DecidedBy == ByNone {
		f = &s.byDefault
	}
	if f.first.Load() != nil {
		return
	}
	var text []byte
	a.Set.Seen(&a.scratch.match, func(name, value string) { text = appendEscaped(text, name, value) })
	f.first.Store(&Refusal{DecidedBy: a.DecidedBy, Subject: string(text)})
}

// appendEscaped appends a value, and its name if it has one. It leaves out what would make the text too long.
func appendEscaped(b []byte, name, value string) []byte {
	if len(b) >= maxRefusalSubject {
		return b
	}
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	if name != "" {
		b = append(appendCut(b, name), '=')
	}
	return appendCut(b, value)
}

// appendCut appends the beginning of a text, with what can't be printed escaped.
func appendCut(b []byte, text string) []byte {
	cut := ""
	if len(text) > maxRefusalText {
		n := maxRefusalText
		for n > maxRefusalText-utf8.UTFMax && !utf8.RuneStart(text[n]) {
			n--
		}
		text, cut = text[:n], "…"
	}
	from := len(b)
	b = strconv.AppendQuote(b, text)
	b = append(b[:from], b[from+1:len(b)-1]...) // without the quotes
	return append(b, cut...)
}
