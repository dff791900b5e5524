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
	// So much is said, and remembered, in notesTime at most; then all is forgotten. A stranger can make up reasons without
	// end, and must not fill the disk with them.
	mostNotes = 256
	notesTime = time.Minute
)

// notes remembers what has been logged, so that it is logged once and not at every try.
type notes struct {
	mu    sync.Mutex // guards what follows
	said  map[string]time.Time
	began time.Time // of what follows
	count int       // of what was said since. Invariant: <= mostNotes
}

// first says whether this is new.
func (n *notes) first(what string) bool { return n.after(what, math.MaxInt64) }

// after says whether this is new, or was said so long ago.
func (n *notes) after(what string, pause time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if when, ok := n.said[what]; ok && now.Sub(when) < pause {
		return false
	}
	if n.said == nil || n.count >= mostNotes {
		if now.Sub(n.began) < notesTime {
			return false
		}
		n.said, n.began, n.count = make(map[string]time.Time), now, 0
	}
	n.count++
	n.said[what] = now
	return true
}

// worthLogging says whether what went wrong with a node is logged: once for each reason, in so far as said remembers it. That
// two releases don't understand each other is said once a minute for each node, whichever of the two dials.
func (p *Peers) worthLogging(err error, node ring.NodeID, said *notes, where string) bool {
	if errors.As(err, new(*versionError)) {
		return p.notes.after("versions "+node.String(), notesTime)
	}
	return said.first(where + causeOf(err))
}

// forget lets everything that begins with a host be said again.
func (n *notes) forget(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.said, func(what string, _ time.Time) bool { return strings.HasPrefix(what, host+" ") })
}

// causeOf tells reasons apart: it is the text of the error at the bottom, which has no port of a single connection in it;
// a refusal has none anywhere.
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

var errRestarted = errors.New("the node has been started again")
