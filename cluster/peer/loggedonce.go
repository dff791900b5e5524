package peer

import (
	"errors"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

const (
	// At most maxLogged events are logged per loggedOncePeriod; further ones are
	// dropped. A stranger can invent reasons, and must not fill the disk.
	maxLogged        = 256
	loggedOncePeriod = time.Minute
)

// loggedOnce remembers which events were logged, so that each is logged once
// and not at every attempt.
type loggedOnce struct {
	mu     sync.Mutex // guards the fields below
	logged map[string]time.Time
	began  time.Time // when logged was last emptied
	count  int       // events logged since began. Invariant: <= maxLogged
}

// claimOnce reports whether to log the event what, once, and then remembers it.
func (lo *loggedOnce) claimOnce(what string) bool { return lo.claim(what, math.MaxInt64) }

// claim reports whether the event what was not logged within the last pause,
// and may be logged now. If so, it remembers the event as logged.
func (lo *loggedOnce) claim(what string, pause time.Duration) bool {
	lo.mu.Lock()
	defer lo.mu.Unlock()

	now := time.Now()
	if when, ok := lo.logged[what]; ok && now.Sub(when) < pause {
		return false
	}

	if lo.logged == nil || lo.count >= maxLogged {
		if now.Sub(lo.began) < loggedOncePeriod {
			return false
		}
		lo.logged = make(map[string]time.Time)
		lo.began = now
		lo.count = 0
	}

	lo.count++
	lo.logged[what] = now
	return true
}

// shouldLog reports whether to log an error with a node. It returns false if
// this reason was already logged for where. A mismatch of releases is logged
// once a minute for each node, whichever of the two ends dials.
func (p *Peers) shouldLog(err error, node ring.NodeID, logged *loggedOnce, where string) bool {
	if errors.As(err, new(*versionError)) {
		return p.loggedOnce.claim("versions "+node.String(), loggedOncePeriod)
	}
	return logged.claimOnce(where + causeOf(err))
}

// forget forgets every event that begins with a host, so that it is logged
// again.
func (lo *loggedOnce) forget(host string) {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	maps.DeleteFunc(lo.logged, func(what string, _ time.Time) bool { return strings.HasPrefix(what, host+" ") })
}

// forgetAll forgets every event.
func (lo *loggedOnce) forgetAll() {
	lo.mu.Lock()
	defer lo.mu.Unlock()
	clear(lo.logged)
}

// causeOf returns a text that identifies the reason of err and contains no port
// of a connection, because each attempt has another port. It is the text of the
// innermost error, or the whole text of a refusal.
func causeOf(err error) string {
	if errors.Is(err, ErrRefused) {
		return err.Error()
	}

	for next := err; next != nil; {
		err, next = next, nil
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			next = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				next = all[len(all)-1]
			}
		}
	}
	return err.Error()
}
