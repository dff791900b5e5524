package limiter

import (
	"time"

	"github.com/rlnode/rlnode/rules"
)

// KeyUsage is what the single counter of a key holds, in a namespace that Redis
// commands use; see [rules.SoleCounterLimit].
type KeyUsage struct {
	Used int64         // units that are used, rounded up; 0 if there is no counter
	Ends time.Duration // how long until nothing is used any more, if nobody takes more
}

// KeyUsage asks the owner what a key's counter holds, in a namespace where each key
// has one counter. The caller need not know the limit: the counter's state
// tells what is used. The error wraps ErrNamespace or ErrNoOwner.
func (l *Limiter) KeyUsage(namespace, key string) (KeyUsage, error) {
	u, err := l.locateKept(namespace, key)
	if err != nil {
		return KeyUsage{}, err
	}
	if err := l.applyChange(newChange(verbUsage, u, nil), u); err != nil {
		return KeyUsage{}, err
	}
	lu := &u.Limits[0]
	return KeyUsage{lu.Used, lu.ResetAfter}, nil
}

// ResetKey makes the only counter of a key fresh, and returns what it held. It
// reads the counter first: what is taken between the two steps is dropped, but
// not returned. The error is one of KeyUsage's, or wraps ErrNoRoom.
func (l *Limiter) ResetKey(namespace, key string) (KeyUsage, error) {
	before, err := l.KeyUsage(namespace, key)
	if err != nil || before.Used == 0 {
		return before, err
	}
	u, err := l.locateKept(namespace, key)
	if err != nil {
		return before, err
	}
	ch := newChange(verbReset, u, nil)
	ch.ticket = ticketOf("", hashChange(ch, u, nil), checkTimeout)
	return before, l.applyChange(ch, u)
}

func (l *Limiter) locateKept(namespace, key string) (*Usage, error) {
	u, err := locateInline(l.Rules(), &rules.InlineSubject{Namespace: namespace, Key: []string{key}})
	if err != nil {
		return nil, err
	}
	u.Limits = []LimitUsage{{Limit: rules.SoleCounterLimit(namespace)}}
	return u, nil
}
