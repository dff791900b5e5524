package limiter

import (
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Bounds of a Refusal, in bytes. maxRefusalText bounds a name or a value.
// maxRefusalSubject bounds a subject, but for its last value.
const (
	maxRefusalText    = 128
	maxRefusalSubject = 512
)

// maxUnreadRefusals bounds the Refusals that wait for the log. Any further ones
// are dropped, and counted in More of the next one.
const maxUnreadRefusals = 1024

// Refusal describes a refused check, for the log.
type Refusal struct {
	DecidedBy DecidedBy // with ByList or ByNone there is no rule and no limit
	Rule      string
	// Subject holds the values of the rule's key attributes or, without a rule, the
	// names and values of the attributes that the rules use. Unprintable characters
	// are escaped, and long values are cut.
	Subject string
	// Limit is this region's share, with loans, of the limit that refused; if
	// several did, of the one with the longest RetryAfter.
	Limit      int64
	Used       int64  // of Limit
	Unit       string // of Limit and Used
	RetryAfter time.Duration
	More       int64 // further checks refused since the rule's last Refusal
}

// refusalLog passes Refusals to the log.
type refusalLog struct {
	every  time.Duration // the log gets one of each kind in this time; 0: every one
	began  time.Time     // has a monotonic reading: no step of the wall clock silences the log
	unread chan *Refusal
}

// FollowRefusals returns a channel of refused checks: for each rule, for the
// deny list and for the default, the first one in each period of the given
// length. If the length is 0, the channel has every refused check. It leaves
// out peeks, and what shadow rules would have refused. If they are not received
// fast enough, further refusals are only counted in More. Call FollowRefusals
// before the first check.
func (l *Limiter) FollowRefusals(every time.Duration) <-chan *Refusal {
	l.refusalLog = &refusalLog{every: every, began: time.Now(), unread: make(chan *Refusal, maxUnreadRefusals)}
	return l.refusalLog.unread
}

// refusalThrottle counts the refused checks of one kind: those of a rule, of the
// deny list, or of the default.
type refusalThrottle struct {
	next atomic.Int64 // when the next one may be logged, in nanoseconds since the log began
	more atomic.Int64 // refused since the last one
}

// admits reports whether the log takes a refusal of kind f now. If not, it
// counts the refusal.
func (rl *refusalLog) admits(f *refusalThrottle) bool {
	if rl == nil {
		return false
	}
	if rl.every == 0 {
		return true
	}

	now := int64(time.Since(rl.began))
	next := f.next.Load()
	if now < next || !f.next.CompareAndSwap(next, now+int64(rl.every)) {
		f.more.Add(1)
		return false
	}
	return true
}

// add passes refusal, of kind f, to the log.
func (rl *refusalLog) add(f *refusalThrottle, refusal *Refusal) {
	refusal.More = f.more.Swap(0)
	select {
	case rl.unread <- refusal:
	default: // the log is slow; no check waits for it
		f.more.Add(refusal.More + 1)
	}
}

// appendEscaped appends a value, after its name if it has one, unless b is
// full.
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

// appendTruncated appends at most maxRefusalText bytes of text, with
// unprintable characters escaped.
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
