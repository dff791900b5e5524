package resp

import (
	"math"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// INCREX of Redis 8.8 is a limiter if it has an upper bound and an expiry that
// only its first call sets: a window from the first hit. The door serves only
// this use.

func increxSpecs() []spec {
	return []spec{{
		name: "increx", arity: -2, need: api.ScopeCheck, asks: (*session).increx, alone: lowers,
		run: (*session).decrex, firstKey: 1, lastKey: 1, keyStep: 1,
		summary: "Counts in a window from the first hit: INCREX key [BYINT n] UBOUND u [SATURATE] EX s|PX ms ENX.",
	}}
}

// increxOption is a set of the words that may follow the key of INCREX.
type increxOption uint16

const (
	byInt increxOption = 1 << iota
	byFloat
	lowerBound
	upperBound
	saturate
	expires // EX, PX, EXAT or PXAT
	ifNoExpiry
	persist
)

// increxCall is what an INCREX says.
type increxCall struct {
	given   increxOption
	by      int64
	lower   int64
	upper   int64
	window  time.Duration
	refused string // an option that INCREX has in Redis, but not here; empty: none
}

const (
	syntaxError   failure = "ERR syntax error"
	notAnInteger  failure = "ERR value is not an integer or out of range"
	invalidExpiry failure = "ERR invalid expire time in 'increx' command"
)

// increxWord is a word that names an option of INCREX.
type increxWord struct {
	text     string // in lower case
	option   increxOption
	hasValue bool
	unit     time.Duration // of an expiry
	refused  bool
}

// increxWords are the options of INCREX. The options of a limiter come first.
var increxWords = [...]increxWord{
	{text: "ubound", option: upperBound, hasValue: true},
	{text: "ex", option: expires, hasValue: true, unit: time.Second},
	{text: "px", option: expires, hasValue: true, unit: time.Millisecond},
	{text: "enx", option: ifNoExpiry},
	{text: "byint", option: byInt, hasValue: true},
	{text: "saturate", option: saturate},
	{text: "byfloat", option: byInt | byFloat, hasValue: true, refused: true},
	{text: "lbound", option: lowerBound, hasValue: true, refused: true},
	{text: "exat", option: expires, hasValue: true, refused: true},
	{text: "pxat", option: expires, hasValue: true, refused: true},
	{text: "persist", option: expires | persist, refused: true},
	{text: "nx", refused: true}, // this one and the next are Valkey's
	{text: "xx", refused: true},
}

// findIncrexWord returns the option that a word names, in any case; nil if there is none.
func findIncrexWord(word []byte) *increxWord {
	for i := range increxWords {
		if is(word, increxWords[i].text) {
			return &increxWords[i]
		}
	}
	return nil
}

// readIncrex reads the words behind the key. Mistakes are reported as Redis does, in its order.
func readIncrex(words [][]byte) (call increxCall, f failure) {
	call.by = 1

	for len(words) > 0 {
		word := findIncrexWord(words[0])
		words = words[1:]
		switch {
		case word == nil || call.given&word.option != 0 || word.hasValue && len(words) == 0:
			return call, syntaxError
		case word.refused && call.refused == "":
			call.refused = strings.ToUpper(word.text)
		}

		call.given |= word.option
		if !word.hasValue {
			continue
		}
		f = call.readValue(word.option, words[0], word.unit)
		if f != "" {
			return call, f
		}

		words = words[1:]
	}

	return call, call.judge()
}

// readValue reads the value of an option.
func (call *increxCall) readValue(option increxOption, word []byte, unit time.Duration) failure {
	n, ok := parseInt(word)
	switch {
	case option&byFloat != 0:
	case option == byInt:
		call.by = n
		if !ok {
			return "ERR Increment is not an integer or out of range"
		}
	case option == lowerBound:
		call.lower = n
		if !ok {
			return "ERR LBOUND is not an integer or out of range"
		}
	case option == upperBound:
		call.upper = n
		if !ok {
			return "ERR UBOUND is not an integer or out of range"
		}
	case !ok:
		return notAnInteger
	case n < 1 || unit > 0 && n > math.MaxInt64/int64(unit):
		return invalidExpiry
	default:
		call.window = time.Duration(n) * unit
	}

	return ""
}

// judge returns why a call whose words are right is refused.
func (call *increxCall) judge() failure {
	const bounds = lowerBound | upperBound
	switch {
	case call.given&bounds == bounds && call.lower > call.upper:
		return "ERR LBOUND can't be greater than UBOUND"
	case call.given&ifNoExpiry != 0 && (call.given&expires == 0 || call.given&persist != 0):
		return "ERR ENX flag requires an expiration"
	case call.refused != "":
		return badValue("INCREX takes no %s here: see docs/redis.md", call.refused)
	case call.given&upperBound == 0:
		return badValue("INCREX needs UBOUND here: see docs/redis.md")
	case call.given&ifNoExpiry == 0:
		return badValue("INCREX needs ENX here: see docs/redis.md")
	case call.upper > algorithms.MaxAmount:
		return badValue("UBOUND must not exceed %d", int64(algorithms.MaxAmount))
	case call.by > algorithms.MaxAmount || call.by < -algorithms.MaxAmount:
		return badValue("BYINT must be a whole number from -%[1]d to %[1]d", int64(algorithms.MaxAmount))
	case call.window < algorithms.MinWindow || call.window > algorithms.MaxWindow:
		return badValue("the expiry must be from 10 milliseconds to 366 days")
	}

	return ""
}

// limit returns the window as a limit.
func (call *increxCall) limit() document.InlineLimit {
	return document.InlineLimit{Limit: max(0, call.upper), PerMS: call.window.Milliseconds(),
		Algorithm: "fixed-window", From: "first"}
}

// increx prepares INCREX.
func (c *session) increx(words [][]byte, q *check) failure {
	call, f := readIncrex(words[1:])
	if f != "" {
		return f
	}
	q.setLimit(rules.IncrexNamespace, words[0], call.limit(), call.by)
	q.AtMost = call.given&saturate != 0
	q.reply = replyIncrex
	return c.confine(&q.Query)
}

// replyIncrex writes how much is used, and how much of that is new.
func replyIncrex(_ *Server, w *writer, q *check) {
	a := &q.answer
	used, applied := int64(0), int64(0)
	if limit := a.TightestLimit(); limit != nil {
		used = limit.Used
	}

	switch {
	case !a.Allowed:
	case a.IsAtMost:
		applied = a.Granted
	default:
		applied = q.subject[0].Costs[0].Cost
	}

	w.array(2)
	w.integer(used)
	w.integer(applied)
}

// lowers reports whether an INCREX lowers a count, which no check does.
func lowers(words [][]byte) bool {
	for i := 1; i+1 < len(words); i++ {
		if is(words[i], "byint") && len(words[i+1]) > 0 && words[i+1][0] == '-' {
			return true
		}
	}
	return false
}

// decrex executes an INCREX that lowers a count, but never below 0.
func (c *session) decrex(words [][]byte) error {
	call, f := readIncrex(words[1:])
	if f == "" {
		f = c.authorize(api.ScopeAdjust)
	}

	if f != "" {
		return c.replyError(f)
	}

	var q check
	q.setLimit(rules.IncrexNamespace, words[0], call.limit(), call.by)

	if f := c.confine(&q.Query); f != "" {
		return c.replyError(f)
	}

	used, applied, err := c.lower(&q, &call)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}

	w := &c.execution.out
	w.array(2)
	w.integer(used)
	w.integer(applied)

	return nil
}

// lower lowers the count of q as call says: without SATURATE, in full or not at
// all by the count that it has read. If others lower it at the same time, it may
// be lowered in part.
func (c *session) lower(q *check, call *increxCall) (used, applied int64, err error) {
	before, err := c.server.Decider.KeyUsage(rules.IncrexNamespace, q.values[0])
	if err != nil {
		return before.Used, 0, err
	}

	left := before.Used + call.by
	isTooMuch := left < 0 && call.given&saturate == 0
	changesNothing := before.Used == 0 || call.by == 0
	// A count that would stay above the upper bound is not lowered. With SATURATE,
	// Redis would lower it to the bound.
	isOverBound := max(0, left) > max(0, call.upper)
	if isTooMuch || changesNothing || isOverBound {
		return before.Used, 0, nil
	}

	q.limit[0].Limit = max(1, q.limit[0].Limit) // a limit of 0 has no counter to adjust
	u, err := c.server.Decider.Adjust(&q.Query)
	if err != nil {
		return 0, 0, err
	}
	return u.Limits[0].Used, u.Limits[0].Applied, nil
}
