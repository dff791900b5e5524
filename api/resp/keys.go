package resp

import (
	"errors"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// The commands about keys ask about what CL.THROTTLE, THROTTLE and INCREX count, as Redis does about its keys. A name may be a key of each.

// keyNamespaces are the namespaces in which a name is looked up.
var keyNamespaces = [...]string{rules.CellNamespace, rules.ThrottleNamespace, rules.IncrexNamespace}

func keySpecs() []spec {
	return []spec{
		{name: "ttl", arity: 2, need: api.ScopeCheck, run: (*session).ttl, firstKey: 1, lastKey: 1, keyStep: 1, summary: "Says in how many seconds nothing is used any more."},
		{name: "pttl", arity: 2, need: api.ScopeCheck, run: (*session).pttl, firstKey: 1, lastKey: 1, keyStep: 1, summary: "Says in how many milliseconds nothing is used any more."},
		{name: "type", arity: 2, need: api.ScopeCheck, run: (*session).typeOf, firstKey: 1, lastKey: 1, keyStep: 1, summary: "Says string of a key that is in use."},
		{name: "exists", arity: -2, need: api.ScopeCheck, run: (*session).exists, firstKey: 1, lastKey: -1, keyStep: 1, summary: "Counts the keys that are in use."},
		{name: "del", arity: -2, need: api.ScopeAdjust, run: (*session).del, firstKey: 1, lastKey: -1, keyStep: 1, summary: "Makes keys as new, and counts those that were in use."},
		{name: "unlink", arity: -2, need: api.ScopeAdjust, run: (*session).del, firstKey: 1, lastKey: -1, keyStep: 1, summary: "Does what DEL does."},
	}
}

// each calls f for a key in each namespace that the caller may use. It fails if that is none of them.
func (c *session) each(key []byte, f func(namespace, key string) error) failure {
	text := keyText(key)
	var refused failure

	asked := 0
	for _, namespace := range keyNamespaces {
		about := rules.InlineSubject{Namespace: namespace, Key: []string{text}}
		why := c.confine(&limiter.Query{Subjects: []limiter.Subject{{InlineSubject: about}}})
		if why == "" {
			if err := f(namespace, text); err != nil {
				why = c.server.explain(err)
				if !errors.Is(err, limiter.ErrNamespace) {
					return why
				}
			}
		}

		if why != "" {
			refused = why
			continue
		}

		asked++
	}

	if asked == 0 {
		return refused
	}

	return ""
}

// kept returns what the counters of a key hold: of several, the last to end. If there is none, Used is 0.
func (c *session) kept(key []byte) (last limiter.Kept, f failure) {
	f = c.each(key, func(namespace, key string) error {
		one, err := c.server.Decider.Kept(namespace, key)
		if err == nil && one.Used > 0 && (last.Used == 0 || one.Ends > last.Ends) {
			last = one
		}
		return err
	})
	return last, f
}

// ttl executes TTL.
func (c *session) ttl(args [][]byte) error { return c.replyTTL(args[0], time.Second) }

// pttl executes PTTL.
func (c *session) pttl(args [][]byte) error { return c.replyTTL(args[0], time.Millisecond) }

// replyTTL writes for how long a key is still in use, rounded as Redis does: up to milliseconds, and from those to the nearest unit.
func (c *session) replyTTL(key []byte, unit time.Duration) error {
	one, f := c.kept(key)
	if f != "" {
		return c.reply(f)
	}
	if one.Used == 0 {
		c.worker.out.integer(-2)
		return nil
	}
	ends := (one.Ends + time.Millisecond - 1).Truncate(time.Millisecond)
	c.worker.out.integer(int64((ends + unit/2) / unit))
	return nil
}

// typeOf executes TYPE.
func (c *session) typeOf(args [][]byte) error {
	one, f := c.kept(args[0])
	switch {
	case f != "":
		return c.reply(f)
	case one.Used == 0:
		c.worker.out.simple("none")
	default:
		c.worker.out.simple("string")
	}
	return nil
}

// exists executes EXISTS. It counts a key as often as it is named.
func (c *session) exists(args [][]byte) error {
	n := int64(0)
	for _, key := range args {
		one, f := c.kept(key)
		if f != "" {
			return c.reply(f)
		}
		n += min(one.Used, 1)
	}
	c.worker.out.integer(n)
	return nil
}

// del executes DEL.
func (c *session) del(args [][]byte) error {
	n := int64(0)
	for _, key := range args {
		had := int64(0)
		f := c.each(key, func(namespace, key string) error {
			one, err := c.server.Decider.DropKept(namespace, key)
			had = max(had, min(one.Used, 1))
			return err
		})
		if f != "" {
			return c.reply(f)
		}

		n += had
	}

	c.worker.out.integer(n)
	return nil
}
