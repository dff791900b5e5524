package client

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxLocal bounds the windows that a client keeps while no node answers.
const maxLocal = 100_000

// local limits within this process while no node answers. For any algorithm, it
// uses a window that begins with a subject's first cost and admits at most the
// limit's capacity.
type local struct {
	began time.Time
	seeds [2]maphash.Seed

	mu      sync.Mutex // guards the rest
	windows map[windowID]window
	swept   time.Duration // when ended windows were last removed
}

// windowID is a hash of a subject and of the parts of a limit that identify its
// counter: unit, algorithm and window.
type windowID [2]uint64

// window is what a subject has used of a limit.
type window struct {
	ends time.Duration // since local.began
	used int64
}

func newLocal() *local {
	return &local{began: time.Now(), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		windows: make(map[windowID]window)}
}

// localOp is one limit of one subject of a check.
type localOp struct {
	id       windowID
	limit    *Limit
	length   time.Duration
	capacity int64
	cost     int64
	mode     Mode
	shadow   bool
	window   window
	fits     bool
}

// decide decides q as a node would, as far as this process can. The limits are
// those of q, or fallback if it has none.
func (l *local) decide(q *Request, fallback []Limit) Decision {
	subjects := q.Subjects
	rule := "inline"
	if subjects == nil {
		subject := q.subject()
		if !q.isInline() {
			rule = cmp.Or(q.Rule, "local")
			subject.Namespace = "\x00" + q.Rule
			subject.Limits = fallback
			subject.Key = append(attributesKey(q.Attributes), q.Key...)
		}
		subjects = []Subject{subject}
	}

	now := time.Since(l.began)
	var ops []localOp
	for i := range subjects {
		s := &subjects[i]
		for j := range s.Limits {
			limit := &s.Limits[j]
			if limit.isSlots() {
				return Decision{DecidedBy: ByLocal, Code: CodeRateLimited, RetryAfter: time.Second,
					Reason: "No node answers, and one process can't tell how many slots others hold."}
			}

			length, ok := windowLength(limit.Per)
			if !ok {
				return Decision{DecidedBy: ByLocal, Reason: fmt.Sprintf("%.80q is not a window.", limit.Per)}
			}

			ops = append(ops, localOp{
				id: l.idOf(s, limit), limit: limit, length: length, capacity: capacityOf(limit),
				cost: costOf(s, limit.Unit), mode: s.Mode, shadow: s.Shadow,
			})
		}
	}

	d := l.take(now, ops)
	d.Rule = rule

	if !d.Allowed {
		d.fillReason()
	}

	return d
}

// take takes the cost of all ops, or of none.
func (l *local) take(now time.Duration, ops []localOp) Decision {
	l.mu.Lock()
	defer l.mu.Unlock()

	fits := true  // all ops but those in shadow fit
	takes := true // the costs are taken: all ops fit but those in shadow or in CountMode
	for i := range ops {
		op := &ops[i]
		w, known := l.windows[op.id]
		if !known && !l.hasRoom(now) {
			return Decision{DecidedBy: ByLocal, Code: CodeRateLimited, RetryAfter: time.Second,
				Reason: "No node answers, and this process already limits too many subjects by itself."}
		}

		if w.ends <= now {
			w = window{ends: now + op.length}
		}

		op.window = w
		op.fits = w.used+op.cost <= op.capacity
		if !op.fits && !op.shadow {
			fits = false
			takes = takes && op.mode == CountMode
		}
	}

	for i := range ops {
		if !takes {
			break
		}
		op := &ops[i]
		op.window.used = min(op.window.used+op.cost, maxAmount)
		// A peek gets what would be used, but nothing is stored.
		if op.mode != PeekMode {
			l.windows[op.id] = op.window
		}
	}

	return describe(now, ops, fits, takes)
}

// hasRoom reports whether there is room for the windows of another check. It
// removes ended windows at most once a second.
func (l *local) hasRoom(now time.Duration) bool {
	// A check may have this many windows, and stores them at the end.
	if len(l.windows) >= maxLocal-maxSubjects*maxLimits && now-l.swept >= time.Second {
		maps.DeleteFunc(l.windows, func(_ windowID, w window) bool { return w.ends <= now })
		l.swept = now
	}
	return len(l.windows) < maxLocal-maxSubjects*maxLimits
}

// describe returns the decision about ops, with the figures of the tightest limit.
func describe(now time.Duration, ops []localOp, fits, takes bool) Decision {
	at := 0
	for i := range ops {
		a, b := &ops[i], &ops[at]
		if !a.shadow && (b.shadow || a.isTighter(b)) {
			at = i
		}
	}

	op := &ops[at]
	d := Decision{
		Allowed: fits, Counted: !fits && takes, Unit: op.unit(), Limit: op.capacity, Used: op.window.used,
		Remaining: max(0, op.capacity-op.window.used), Window: op.length,
		ResetAfter: max(0, op.window.ends-now), DecidedBy: ByLocal,
	}
	if !fits {
		d.Code = CodeRateLimited
		d.RetryAfter = d.ResetAfter
		if op.cost > op.capacity {
			d.Code = CodeCostAboveLimit
			d.RetryAfter = Never
		}
	}

	return d
}

// isTighter reports whether a is tighter than b: it refuses and b does not, it
// refuses for longer, or a smaller share is left.
func (op *localOp) isTighter(b *localOp) bool {
	switch {
	case op.fits != b.fits:
		return b.fits
	case !op.fits && (op.cost > op.capacity) != (b.cost > b.capacity):
		return op.cost > op.capacity
	case !op.fits:
		return op.window.ends > b.window.ends
	}
	share := func(x, y *localOp) *big.Int {
		return new(big.Int).Mul(big.NewInt(max(0, x.capacity-x.window.used)), big.NewInt(y.capacity))
	}
	return share(op, b).Cmp(share(b, op)) < 0
}

func (op *localOp) unit() string {
	if op.limit.Unit == "" {
		return requests
	}
	return op.limit.Unit
}

// idOf returns the identity of the window of limit for s.
func (l *local) idOf(s *Subject, limit *Limit) (id windowID) {
	for i, seed := range l.seeds {
		var h maphash.Hash
		h.SetSeed(seed)
		for _, text := range append([]string{s.Namespace, limit.Unit, limit.Algorithm, limit.Per,
			strconv.FormatBool(limit.FromFirst)}, s.Key...) {
			// Each text has its length in front, so that different lists are never the
			// same bytes.
			_, _ = h.WriteString(strconv.Itoa(len(text))) // never fails
			_, _ = h.WriteString(":" + text)
		}
		id[i] = h.Sum64()
	}
	return id
}

// attributesKey returns a key made of the attributes that identify the caller.
// It leaves out endpoint and method, because a caller could change those to get
// a new window.
func attributesKey(attributes map[string]string) (key []string) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name != "endpoint" && name != "method" && attributes[name] != "" {
			key = append(key, name, attributes[name])
		}
	}
	return key
}

// requests is the default unit, of which a check costs 1 by default.
const requests = "requests"

// costOf returns what s costs in unit.
func costOf(s *Subject, unit string) int64 {
	if unit != "" && unit != requests {
		return min(s.Costs[unit], maxAmount)
	}
	if n, named := s.Costs[requests]; named {
		return min(n, maxAmount)
	}
	return min(max(1, s.Cost), maxAmount)
}

func capacityOf(l *Limit) int64 {
	if strings.HasSuffix(l.Algorithm, "-bucket") && l.Burst > 0 {
		return l.Burst
	}
	return l.Limit
}

// windowLength returns the length of a window, which is a calendar unit or a
// duration, possibly in days. A month counts as 31 days here, a year as 366.
func windowLength(per string) (time.Duration, bool) {
	const day = 24 * time.Hour
	switch per {
	case "minute":
		return time.Minute, true
	case "hour":
		return time.Hour, true
	case "day":
		return day, true
	case "week":
		return 7 * day, true
	case "month":
		return 31 * day, true
	case "year":
		return 366 * day, true
	}

	days, rest, hasDays := strings.Cut(per, "d")
	if !hasDays {
		days, rest = "0", per
	}

	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || n > 366 {
		return 0, false
	}

	var d time.Duration
	if rest != "" || !hasDays {
		d, err = time.ParseDuration(rest)
		if err != nil || d <= 0 {
			return 0, false
		}
	}

	d += time.Duration(n) * day
	return d, d > 0 && d <= 366*day
}
