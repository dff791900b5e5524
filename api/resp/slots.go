package resp

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
)

// The commands of slots, which callers hold until they release them.

func slotSpecs() []spec {
	return []spec{
		{
			name: "rl.acquire", arity: -2, need: api.ScopeCheck, run: (*session).acquire,
			summary: "Holds slots: RL.ACQUIRE rule key… [N n] [COST n] [UNIT u] [TTL ms] [WHO name] [REQUESTID id].",
		},
		{
			name: "rl.renew", arity: -2, need: api.ScopeCheck, run: (*session).renew,
			summary: "Holds a slot for longer: RL.RENEW slot [TTL ms].",
		},
		{
			name: "rl.release", arity: 2, need: api.ScopeCheck, run: (*session).releaseSlot,
			summary: "Gives a slot back: RL.RELEASE slot.",
		},
	}
}

// readSlots reads how many slots a command holds of each limit.
func readSlots(word []byte) (int64, failure) {
	n, ok := parseInt(word)
	if !ok || n < 1 || n > limiter.MaxSlots {
		return 0, badValue("N must be a whole number from 1 to %d", int64(limiter.MaxSlots))
	}
	return n, ""
}

// acquire executes RL.ACQUIRE.
func (c *session) acquire(words [][]byte) error {
	n, f := c.query(words, optCost|optSlots|optSlotTTL|optRequestID)
	if f != "" {
		return c.replyError(f)
	}

	n.SlotTTL = n.ttl
	n.AwaitsLoan = !c.execution.hasMore
	if n.Who == "" {
		n.Who = api.HolderName(c.token, c.RemoteAddr())
	}

	var answer limiter.Answer
	slot, err := c.server.Decider.Acquire(n.Query, &answer)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}

	if slot.ID != "" && c.HasHungUp() { // nobody would ever release it
		c.server.Decider.ReleaseUnanswered(slot)
		c.execution.out.fail("ERR try-again the caller hung up before the answer, so the slot was released")
		return errOver
	}

	took := time.Since(c.execution.began)
	c.stripe.Observe(took)
	answer.CountLatency(took)

	c.server.replyDecision(&c.execution.out, &answer, "", slot)
	if slot.ID != "" {
		c.execution.acquired = append(c.execution.acquired, unsentSlot{slot, len(c.execution.out.b)})
	}
	return nil
}

// renew executes RL.RENEW slot [TTL ms].
func (c *session) renew(words [][]byte) error {
	n := keyQuery{Query: &limiter.Query{}}
	if f := n.readOptions(words[1:], optSlotTTL); f != "" {
		return c.replyError(f)
	}
	expires, err := c.server.Decider.RenewSlot(string(words[0]), n.ttl)
	if err != nil {
		return c.replyError(c.server.explain(err))
	}
	fields := c.execution.out.fields()
	fields.integer("expires_ms", expires.Milliseconds())
	fields.end()
	return nil
}

// releaseSlot executes RL.RELEASE slot.
func (c *session) releaseSlot(words [][]byte) error {
	held, err := c.server.Decider.ReleaseSlot(string(words[0]))
	if err != nil {
		return c.replyError(c.server.explain(err))
	}
	fields := c.execution.out.fields()
	fields.boolean("released", held)
	fields.end()
	return nil
}

// releaseUnsent releases the slots that the caller does not know of. Nobody
// else would.
func (c *session) releaseUnsent() {
	for _, slot := range c.execution.acquired {
		c.server.Decider.ReleaseUnanswered(slot.Slot)
	}
	c.execution.acquired = nil
}

// The bounds of a slot's ttl.
const (
	minSlotTTL = algorithms.MinWindow
	maxSlotTTL = limiter.MaxSlotTTL
)

// writeHolders writes the fields about the slots of a limit that are held; the
// soonest end first.
func writeHolders(f *fields, l *limiter.LimitUsage) {
	f.integer("holders", int64(l.NumHolders))
	f.name("slots")
	f.w.array(len(l.Holders))

	for i := range l.Holders {
		h := &l.Holders[i]
		row := f.w.fields()
		row.text("slot", limiter.ShortSlotID(h.ID))
		row.integer("n", h.Slots)
		row.integer("age_ms", h.Age.Milliseconds())
		row.integer("expires_ms", h.Expires.Milliseconds())
		row.text("who", h.Who)
		row.end()
	}
}
