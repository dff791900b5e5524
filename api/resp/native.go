package resp

import (
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// The commands of rlnode itself ask about rules of the document, as calls over
// HTTP do. Their replies have the same fields.

func nativeSpecs() []spec {
	return []spec{
		{
			name: "rl.check", arity: -2, need: api.ScopeCheck, asks: (*session).check,
			summary: "Checks a key of a rule: RL.CHECK rule key… [COST n] [UNIT u] [PEEK|COUNT].",
		},

		{
			name: "rl.reserve", arity: -2, need: api.ScopeCheck, run: (*session).reserveCost,
			summary: "Reserves an estimate: RL.RESERVE rule key… [COST n] [UNIT u] [TTL ms] [REQUESTID id].",
		},
		{
			name: "rl.settle", arity: -4, need: api.ScopeCheck, run: (*session).settle,
			summary: "Settles a reservation by what was used: RL.SETTLE reservation COST n [UNIT u].",
		},

		{
			name: "rl.usage", arity: -2, need: api.ScopeCheck, run: (*session).usage,
			summary: "Says what a key of a rule has used: RL.USAGE rule key….",
		},
		{
			name: "rl.reset", arity: -2, need: api.ScopeAdjust, run: (*session).resetUsage,
			summary: "Makes the counters of a key of a rule as new: RL.RESET rule key… [LIMIT name] [REQUESTID id].",
		},
	}
}

// option is a set of words that may follow the key.
type option uint8

const (
	optCost option = 1 << iota // COST and UNIT
	optMode
	optTTL
	optLimit
	optRequestID
	optExplicit // a UNIT needs a COST
	optSlots    // N and WHO
	optSlotTTL  // TTL of a slot
)

// maxName bounds the names of rules, limits and units, in bytes. No name is
// longer.
const maxName = 128

// text returns a word as text, which points into it. It must be valid UTF-8, of
// least to most bytes; least is 0 or 1.
func text(word []byte, field string, least, most int) (string, failure) {
	switch {
	case len(word) < least:
		return "", badValue("%s must not be empty", field)
	case !utf8.Valid(word):
		return "", badValue("%s must be UTF-8", field)
	case len(word) > most:
		return "", badValue("%s must not have more than %d bytes", field, most)
	}
	return unsafe.String(unsafe.SliceData(word), len(word)), ""
}

// keyQuery is what a command says about a key of a rule.
type keyQuery struct {
	*limiter.Query
	ttl time.Duration
}

// read reads the words of a command: a rule, as many values as its key has, and options.
func (n *keyQuery) read(set *rules.Set, words [][]byte, allowed option) (f failure) {
	n.Rule, f = text(words[0], "rule", 1, maxName)
	if f != "" {
		return f
	}

	n.ByKey = true
	rest := words[1:]
	rule := set.Rule(n.Rule)
	if rule == nil {
		return "" // the decider reports it
	}

	for range min(len(rule.Key), len(rest)) {
		value, f := text(rest[0], "key", 0, document.MaxValueBytes)
		if f != "" {
			return f
		}
		n.Key = append(n.Key, value)
		rest = rest[1:]
	}

	return n.readOptions(rest, allowed)
}

// readOptions reads the words behind the key.
func (n *keyQuery) readOptions(words [][]byte, allowed option) (f failure) {
	var costs costReader
	costs.list = n.Costs[:0]
	hasMode := false

	for len(words) > 0 && f == "" {
		word := words[0]
		var value []byte
		if len(words) > 1 {
			value = words[1]
		}

		used := 2
		switch {
		case allowed&optMode != 0 && (is(word, "peek") || is(word, "count")):
			if hasMode {
				return badValue("PEEK and COUNT exclude each other")
			}
			hasMode = true
			used = 1
			n.Mode = counters.PeekMode
			if is(word, "count") {
				n.Mode = counters.CountMode
			}
		case allowed&optCost != 0 && is(word, "cost"):
			f = costs.cost(value)
		case allowed&optCost != 0 && is(word, "unit"):
			f = costs.unit(value)
		case allowed&optTTL != 0 && is(word, "ttl"):
			n.ttl, f = readTTL(value, time.Millisecond, limiter.MaxReservationTime)
		case allowed&optSlotTTL != 0 && is(word, "ttl"):
			n.ttl, f = readTTL(value, minSlotTTL, maxSlotTTL)
		case allowed&optSlots != 0 && is(word, "n"):
			n.Slots, f = readSlots(value)
		case allowed&optSlots != 0 && is(word, "who"):
			n.Who, f = text(value, "WHO", 1, limiter.MaxWho)
		case allowed&optLimit != 0 && is(word, "limit"):
			n.LimitName, f = text(value, "LIMIT", 1, maxName)
		case allowed&optRequestID != 0 && is(word, "requestid"):
			n.RequestID, f = text(value, "REQUESTID", 1, limiter.MaxRequestID)
		default:
			return badValue("%s is no option here, or the key has too many values", printableShort(word))
		}

		if used > len(words) {
			return badValue("%s needs a value", strings.ToUpper(string(word)))
		}

		words = words[min(used, len(words)):]
	}

	if f == "" {
		n.Costs, f = costs.finish(allowed&optExplicit != 0)
	}

	return f
}

// printableShort returns a caller's word for a message.
func printableShort(word []byte) string { return api.Excerpt(printable(word)) }

// readTTL reads how long a reservation or a slot may last.
func readTTL(word []byte, least, most time.Duration) (time.Duration, failure) {
	ms, ok := parseInt(word)
	if !ok || ms < least.Milliseconds() || ms > most.Milliseconds() {
		return 0, badValue("TTL must be a whole number of milliseconds from %d to %d",
			least.Milliseconds(), most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, ""
}

// costReader reads costs. COST and UNIT come in any order; a second one of
// either begins the next cost.
type costReader struct {
	list             []limiter.UnitCost
	hasCost, hasUnit bool   // whether the last cost in list has it
	unitWithoutCost  string // a unit that was given without a cost; empty: none
}

// next begins another cost.
func (cr *costReader) next() failure {
	cr.checkMissing()
	if len(cr.list) == limiter.MaxCosts {
		return badValue("COST must not be given for more than %d units", limiter.MaxCosts)
	}
	cr.list = append(cr.list, limiter.UnitCost{Unit: document.Requests, Cost: 1})
	cr.hasCost, cr.hasUnit = false, false
	return ""
}

func (cr *costReader) cost(word []byte) failure {
	n, ok := parseInt(word)
	if !ok || n < 0 || n > algorithms.MaxAmount {
		return badValue("COST must be a whole number from 0 to %d", int64(algorithms.MaxAmount))
	}
	if len(cr.list) == 0 || cr.hasCost {
		if f := cr.next(); f != "" {
			return f
		}
	}
	cr.list[len(cr.list)-1].Cost, cr.hasCost = n, true
	return ""
}

func (cr *costReader) unit(word []byte) failure {
	name, f := text(word, "UNIT", 1, maxName)
	if f != "" {
		return f
	}

	if len(cr.list) == 0 || cr.hasUnit {
		if f := cr.next(); f != "" {
			return f
		}
	}

	cr.list[len(cr.list)-1].Unit, cr.hasUnit = name, true
	return ""
}

// checkMissing remembers the last unit if it was given without a cost.
func (cr *costReader) checkMissing() {
	if len(cr.list) > 0 && !cr.hasCost {
		cr.unitWithoutCost = cr.list[len(cr.list)-1].Unit
	}
}

// finish returns the costs. If explicit is set, each unit needs a cost;
// otherwise a missing cost is 1.
func (cr *costReader) finish(explicit bool) ([]limiter.UnitCost, failure) {
	cr.checkMissing()
	if explicit && cr.unitWithoutCost != "" {
		return cr.list, badValue("COST is missing for the unit %s", printableShort([]byte(cr.unitWithoutCost)))
	}
	for i := range cr.list {
		for j := range i {
			if cr.list[i].Unit == cr.list[j].Unit {
				return cr.list, badValue("the unit %s is given twice", printableShort([]byte(cr.list[i].Unit)))
			}
		}
	}
	return cr.list, ""
}

// check prepares RL.CHECK.
func (c *session) check(words [][]byte, q *check) failure {
	n := keyQuery{Query: &q.Query}
	if f := n.read(c.server.Decider.Rules(), words, optCost|optMode); f != "" {
		return f
	}
	q.reply = replyCheck
	return c.confine(&q.Query)
}

// replyCheck writes the decision on q.
func replyCheck(s *Server, w *writer, q *check) {
	s.replyDecision(w, &q.answer, "", limiter.Slot{})
}

// replyDecision writes a decision with the fields that it has over HTTP.
// reservation and slot may be empty.
func (s *Server) replyDecision(w *writer, a *limiter.Answer, reservation string, slot limiter.Slot) {
	f := w.fields()
	f.boolean("allowed", a.Allowed)
	t := a.TightestLimit()
	if !a.Allowed && !a.Counted {
		code := string(api.Denied)
		if !a.Denied() {
			code = string(t.Cause())
		}
		f.text("code", code)
		var buffer [256]byte
		f.name("detail")
		w.bytes(a.AppendReason(buffer[:0]))
	}

	if t != nil {
		s.limitFields(&f, a, t)
	} else {
		s.unlimitedFields(&f, a)
	}

	f.text("decided_by", a.DecidedBy.String())
	f.text("node", s.Node)
	f.integer("rules_version", a.RulesVersion)

	if a.IsAtMost {
		f.integer("granted", a.Granted)
	}
	if reservation != "" {
		f.text("reservation", reservation)
	}

	if slot.ID != "" {
		f.text("slot", slot.ID)
		f.integer("expires_ms", slot.Expires.Milliseconds())
	}

	f.end()
}

// limitFields writes what a decision says of its tightest limit.
func (s *Server) limitFields(f *fields, a *limiter.Answer, t *limiter.LimitAnswer) {
	shown := t.Limit.AdvertisedAt(a.Now)
	f.text("rule", t.Rule.Name)
	f.integer("limit", shown.Capacity)
	f.integer("used", t.Used)
	f.integer("remaining", t.Remaining)
	f.text("unit", t.Limit.Unit)
	f.window(&shown)
	f.integer("reset_after_ms", codec.Millis(t.ResetAfter))
	f.integer("retry_after_ms", codec.Millis(t.RetryAfter))

	if t.MoreAfter > 0 {
		f.integer("more_after_ms", codec.Millis(t.MoreAfter))
	}

	f.integer("delay_ms", codec.Millis(a.Delay()))
	f.rate(&shown)
}

// window writes the window of a limit or, for slots, the time after which one
// ends.
func (f *fields) window(shown *rules.AdvertisedLimit) {
	name := "window_ms"
	if shown.Slots {
		name = "ttl_ms"
	}
	f.integer(name, codec.Millis(shown.Window))
}

// rate writes what a limit allows over time. Slots have no rate.
func (f *fields) rate(shown *rules.AdvertisedLimit) {
	if shown.Slots {
		return
	}
	f.name("rate")
	f.w.mapOf(2)
	f.w.text("limit")
	f.w.integer(shown.Amount)
	f.w.text("per_ms")
	f.w.integer(codec.Millis(shown.Per))
}

// unlimitedFields writes the fields of a decision in which no limit took part.
func (s *Server) unlimitedFields(f *fields, a *limiter.Answer) {
	rule := a.UnlimitedRule()
	if rule != nil && a.Allowed {
		f.text("rule", rule.Name)
		f.boolean("unlimited", true)
	} else {
		f.text("rule", "")
	}

	retry := int64(0)
	if !a.Allowed {
		retry = -1
	}

	f.integer("retry_after_ms", retry)
	f.integer("delay_ms", 0)
}

// query reads the words of a command that is executed at once.
func (c *session) query(words [][]byte, allowed option) (n keyQuery, f failure) {
	n.Query = &limiter.Query{}
	f = n.read(c.server.Decider.Rules(), words, allowed)
	if f != "" {
		return n, f
	}
	return n, c.confine(n.Query)
}

// reserveCost executes RL.RESERVE.
func (c *session) reserveCost(words [][]byte) error {
	n, f := c.query(words, optCost|optTTL|optRequestID)
	if f != "" {
		return c.replyError(f)
	}

	if n.ttl == 0 {
		n.ttl = limiter.DefaultReservationTime
	}

	n.AwaitsLoan = !c.execution.hasMore
	var answer limiter.Answer
	id, err := c.server.Decider.Reserve(n.Query, n.ttl, &answer)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}

	took := time.Since(c.execution.began)
	c.stripe.Observe(took)
	answer.CountLatency(took)
	slot := limiter.Slot{}
	if id != "" {
		slot, _ = c.server.Decider.SlotOf(id)
	}

	c.server.replyDecision(&c.execution.out, &answer, id, slot)
	return nil
}

// settle executes RL.SETTLE reservation COST n [UNIT u].
func (c *session) settle(words [][]byte) error {
	n := keyQuery{Query: &limiter.Query{}}
	if f := n.readOptions(words[1:], optCost|optExplicit); f != "" {
		return c.replyError(f)
	}

	id := string(words[0])
	for i := range n.Costs {
		n.Costs[i].Unit = strings.Clone(n.Costs[i].Unit) // the decider may use it after this command
	}

	out, err := c.server.Decider.Settle(id, n.Costs)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}

	w := &c.execution.out
	fields := w.fields()
	fields.text("reservation", id)
	fields.boolean("settled", true)
	fields.name("costs")
	w.mapOf(len(out.Costs))
	for _, cost := range out.Costs {
		w.text(cost.Unit)
		w.integer(cost.Cost)
	}

	if out.Remaining >= 0 {
		fields.integer("remaining", out.Remaining)
	}
	if out.Late {
		fields.boolean("expired", true)
	}
	fields.boolean("repeated", out.Repeated)
	fields.end()
	return nil
}

// usage executes RL.USAGE.
func (c *session) usage(words [][]byte) error { return c.replyUsage(words, 0, api.Decider.Usage) }

// resetUsage executes RL.RESET.
func (c *session) resetUsage(words [][]byte) error {
	return c.replyUsage(words, optLimit|optRequestID, api.Decider.Reset)
}

// replyUsage executes a command that answers with what a key has used.
func (c *session) replyUsage(
	words [][]byte, allowed option, operation func(api.Decider, *limiter.Query) (*limiter.Usage, error),
) error {
	n, f := c.query(words, allowed)
	if f != "" {
		return c.replyError(f)
	}

	u, err := operation(c.server.Decider, n.Query)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}

	writeUsage(&c.execution.out, u)
	return nil
}

// writeUsage writes what a key has used.
func writeUsage(w *writer, u *limiter.Usage) {
	fields := w.fields()
	fields.text("rule", u.Rule.Name)

	fields.name("key")
	w.array(len(u.Key))
	for _, value := range u.Key {
		w.text(value)
	}

	fields.name("limits")
	w.array(len(u.Limits) + len(u.Unlimited))
	for i := range u.Limits {
		writeLimitUsage(w, u, &u.Limits[i])
	}
	for _, limit := range u.Unlimited {
		row := w.fields()
		row.text("name", limit.Name)
		if limit.Unit != "" {
			row.text("unit", limit.Unit)
		}
		row.boolean("unlimited", true)
		row.end()
	}

	fields.integer("blocked_until_ms", u.BlockedUntil)
	fields.end()
}

// writeLimitUsage writes what a key has used of one limit.
func writeLimitUsage(w *writer, u *limiter.Usage, l *limiter.LimitUsage) {
	shown := l.Limit.AdvertisedAt(u.At)
	f := w.fields()
	f.text("name", l.Limit.Name)
	f.text("algorithm", l.Limit.Kind.String())
	f.text("unit", l.Limit.Unit)
	f.integer("limit", shown.Capacity)
	f.window(&shown)
	f.integer("used", l.Used)
	f.integer("remaining", l.Remaining)
	f.integer("leased", l.Leased)
	f.integer("share", l.Share)
	f.integer("reset_after_ms", codec.Millis(l.ResetAfter))

	if l.MoreAfter > 0 {
		f.integer("more_after_ms", codec.Millis(l.MoreAfter))
	}
	if shown.Slots {
		writeHolders(&f, l)
	}
	if l.Estimated {
		f.boolean("estimated", true)
	}

	f.rate(&shown)
	f.end()
}
