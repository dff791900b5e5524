package limiter

import (
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/rules"
)

// Bounds of a Refusal, in bytes. maxRefusalText bounds a value, and maxRefusalSubject, roughly, a whole subject.
const (
	maxRefusalText    = 128
	maxRefusalSubject = 512
)

// Refusal describes a refused check, for the log.
type Refusal struct {
	DecidedBy DecidedBy // with ByList or ByNone there is no rule and no limit
	Rule      string
	// Subject holds the values of the rule's key attributes or, without a rule, the names and values of the attributes that the
	// rules use. Unprintable characters are escaped, and long values are cut.
	Subject    string
	Limit      int64  // capacity in this region of the limit that refused; if several did, of the one with the longest RetryAfter
	Used       int64  // of Limit
	Unit       string // of Limit and Used
	RetryAfter time.Duration
	More       int64 // further checks refused since the rule's last Refusal
}

// refusals keeps the first refused check of one kind since take was last called. All other refused checks only read first.
type refusals struct {
	first atomic.Pointer[Refusal]
	taken int64 // number of checks refused when first was last taken; guarded by Limiter.mu
}

// take returns the first refusal since the last call, or nil. refused is the number of refusals so far.
func (rf *refusals) take(refused int64) *Refusal {
	r := rf.first.Swap(nil)
	if r == nil || refused <= rf.taken {
		return nil // the previous Refusal's More already counts it
	}
	r.More, rf.taken = refused-rf.taken-1, refused
	return r
}

// Refusals returns the first check refused since the last call by each rule, by the deny list and by the default. It leaves out
// peeks, and what shadow rules would have refused.
func (l *Limiter) Refusals() (all []*Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	active := l.inForce.Load()
	if active == nil {
		return nil
	}
	add := func(f *refusals, refused func() int64) {
		if f.first.Load() == nil {
			return // the common case; don't count
		}
		if r := f.take(refused()); r != nil {
			all = append(all, r)
		}
	}
	for _, s := range active.stats {
		add(&s.refusals, func() (n int64) {
			for by := range ByList {
				n += s.refused(by)
			}
			return n
		})
	}
	add(&active.overall.refusals, func() int64 { return active.overall.refused(ByList) })
	add(&active.overall.byDefault, func() int64 { return active.overall.refused(ByNone) })
	return all
}

// refused returns how many checks with the given DecidedBy were refused.
func (s *ruleStats) refused(by DecidedBy) (n int64) {
	for i := range s.stripe {
		n += s.stripe[i].checks[DecisionRefused][by].Load()
	}
	return n
}

// recordRefusal keeps a check that h's rule refused, if it is the first since the last call of Refusals.
func (s *ruleStats) recordRefusal(a *Answer, h *rules.Hit, limits []LimitAnswer, q *Query) {
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
	for _, value := range subjectKey(h, q) {
		text = appendEscaped(text, "", value)
	}
	r.Subject = string(text)
	s.refusals.first.Store(r)
}

// recordDenial is recordRefusal for a check that a list or the default refused.
func (s *ruleStats) recordDenial(a *Answer) {
	f := &s.refusals
	if a.DecidedBy == ByNone {
		f = &s.byDefault
	}
	if f.first.Load() != nil {
		return
	}
	var text []byte
	a.Set.UsedAttributes(&a.scratch.match, func(name, value string) { text = appendEscaped(text, name, value) })
	f.first.Store(&Refusal{DecidedBy: a.DecidedBy, Subject: string(text)})
}

// appendEscaped appends a value, preceded by its name if it has one, unless b is full.
func appendEscaped(b []byte, name, value string) []byte {
	if len(b) >= maxRefusalSubject {
		return b
	}
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	if name != "" {
		b = append(appendTruncated(b, name), '=')
	}
	return appendTruncated(b, value)
}

// appendTruncated appends at most maxRefusalText bytes of text, with unprintable characters escaped.
func appendTruncated(b []byte, text string) []byte {
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
