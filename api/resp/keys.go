package resp

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// The commands about keys ask about the counts of CL.THROTTLE, THROTTLE and
// INCREX, as those of Redis ask about its keys. A name may be a key of each.

// keyNamespaces are the namespaces in which a name is looked up.
var keyNamespaces = [...]string{rules.CellNamespace, rules.ThrottleNamespace, rules.IncrexNamespace}

func keySpecs() []spec {
	return []spec{
		{name: "ttl", arity: 2, need: api.ScopeCheck, run: (*session).ttl, firstKey: 1, lastKey: 1,
			keyStep: 1, summary: "Says in how many seconds nothing is used any more."},
		{name: "pttl", arity: 2, need: api.ScopeCheck, run: (*session).pttl, firstKey: 1,
			lastKey: 1, keyStep: 1, summary: "Says in how many milliseconds nothing is used any more."},
		{name: "type", arity: 2, need: api.ScopeCheck, run: (*session).typeOf, firstKey: 1,
			lastKey: 1, keyStep: 1, summary: "Says string of a key that is in use."},
		{name: "exists", arity: -2, need: api.ScopeCheck, run: (*session).exists, firstKey: 1,
			lastKey: -1, keyStep: 1, summary: "Counts the keys that are in use."},
		{name: "del", arity: -2, need: api.ScopeAdjust, run: (*session).del, firstKey: 1,
			lastKey: -1, keyStep: 1, summary: "Makes keys as new, and counts those that were in use."},
		{name: "unlink", arity: -2, need: api.ScopeAdjust, run: (*session).del, firstKey: 1,
			lastKey: -1, keyStep: 1, summary: "Does what DEL does."},
	}
}

// keyAsk asks what a name counts as a key in one namespace.
type keyAsk struct {
	index          int // which of the command's names it is, from 0
	namespace, key string
	kept           limiter.KeyUsage
	err            error
}

// namesAtOnce bounds the names that a command asks about before the next ones,
// and so the memory of its asks.
const namesAtOnce = 64

// keyCall is the call of the limiter that a command makes for each of its keys.
type keyCall func(namespace, key string) (limiter.KeyUsage, error)

// askAboutKeys makes a call for each name in each namespace that the caller may
// use, and returns what each name has counted: if a name is several keys, the
// one that ends last; if it is none, Used is 0. The names must not change
// meanwhile. It fails if a call fails, or if a name may be asked about in no
// namespace.
func (c *session) askAboutKeys(names [][]byte, call keyCall) ([]limiter.KeyUsage, failure) {
	asks, refused := c.keyAsks(names)
	if len(asks) == 0 {
		return nil, refused
	}
	c.makeAll(asks, call)

	last := make([]limiter.KeyUsage, len(names))
	answered := make([]bool, len(names))
	for i := range asks {
		ask := &asks[i]
		switch {
		case ask.err == nil:
			answered[ask.index] = true
		case errors.Is(ask.err, limiter.ErrNamespace): // the document does not allow it
			refused = c.server.explain(ask.err)
			continue
		default:
			return nil, c.server.explain(ask.err)
		}

		kept := ask.kept
		latest := &last[ask.index]
		if kept.Used > 0 && (latest.Used == 0 || kept.Ends > latest.Ends) {
			*latest = kept
		}
	}

	// A name that could not be asked about must not look like an unused key.
	if slices.Contains(answered, false) {
		return nil, refused
	}

	return last, ""
}

// keyAsks lists what to ask about names. If the list is empty, refused says why
// the caller may use no namespace.
func (c *session) keyAsks(names [][]byte) (asks []keyAsk, refused failure) {
	asks = make([]keyAsk, 0, len(names)*len(keyNamespaces))
	for i, name := range names {
		text := keyText(name)
		for _, namespace := range keyNamespaces {
			about := rules.InlineSubject{Namespace: namespace, Key: []string{text}}
			why := c.confine(&limiter.Query{Subjects: []limiter.Subject{{InlineSubject: about}}})
			if why != "" {
				refused = why
				continue
			}
			asks = append(asks, keyAsk{index: i, namespace: namespace, key: text})
		}
	}
	return asks, refused
}

// makeAll makes all asks. After an error it begins no other.
func (c *session) makeAll(asks []keyAsk, call keyCall) {
	c.server.Budget.AskAll(len(asks), func(i int) bool {
		ask := &asks[i]
		ask.kept, ask.err = call(ask.namespace, ask.key)
		return ask.err == nil || errors.Is(ask.err, limiter.ErrNamespace)
	})
}

// kept returns what the counters of a name hold; see askAboutKeys.
func (c *session) kept(name []byte) (limiter.KeyUsage, failure) {
	list, f := c.askAboutKeys([][]byte{name}, c.server.Decider.KeyUsage)
	if f != "" {
		return limiter.KeyUsage{}, f
	}
	return list[0], ""
}

// ttl executes TTL.
func (c *session) ttl(args [][]byte) error { return c.replyTTL(args[0], time.Second) }

// pttl executes PTTL.
func (c *session) pttl(args [][]byte) error { return c.replyTTL(args[0], time.Millisecond) }

// replyTTL writes for how long a key is still in use, rounded as Redis does: up
// to milliseconds, and from those to the nearest unit.
func (c *session) replyTTL(key []byte, unit time.Duration) error {
	kept, f := c.kept(key)
	if f != "" {
		return c.replyError(f)
	}
	if kept.Used == 0 {
		c.execution.out.integer(-2)
		return nil
	}
	ends := (kept.Ends + time.Millisecond - 1).Truncate(time.Millisecond)
	c.execution.out.integer(int64((ends + unit/2) / unit))
	return nil
}

// typeOf executes TYPE.
func (c *session) typeOf(args [][]byte) error {
	kept, f := c.kept(args[0])
	switch {
	case f != "":
		return c.replyError(f)
	case kept.Used == 0:
		c.execution.out.simple("none")
	default:
		c.execution.out.simple("string")
	}
	return nil
}

// exists executes EXISTS. It counts a key as often as it is named.
func (c *session) exists(args [][]byte) error {
	return c.replyCount(args, func(names [][]byte) ([]limiter.KeyUsage, failure) {
		return c.askAboutKeys(names, c.server.Decider.KeyUsage)
	})
}

// del executes DEL. It counts a key once, because it is gone the second time.
func (c *session) del(args [][]byte) error {
	return c.replyCount(args, func(names [][]byte) ([]limiter.KeyUsage, failure) {
		var distinct [][]byte
		for _, name := range names {
			if !slices.ContainsFunc(distinct, func(seen []byte) bool { return bytes.Equal(name, seen) }) {
				distinct = append(distinct, name)
			}
		}
		return c.askAboutKeys(distinct, c.server.Decider.ResetKey)
	})
}

// replyCount asks about the names in chunks, and writes how many of them were
// in use.
func (c *session) replyCount(names [][]byte, ask func(names [][]byte) ([]limiter.KeyUsage, failure)) error {
	n := int64(0)
	for chunk := range slices.Chunk(names, namesAtOnce) {
		list, f := ask(chunk)
		if f != "" {
			return c.replyError(f)
		}
		for _, kept := range list {
			n += min(kept.Used, 1)
		}
	}

	c.execution.out.integer(n)
	return nil
}
