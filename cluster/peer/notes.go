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
	// maxNotes bounds the notes that are logged and remembered within notesTime; then all are forgotten. A stranger can
	// make up reasons without end, and must not fill the disk with them.
	maxNotes  = 256
	notesTime = time.Minute
)

// notes remembers what has been logged, so that it is logged once and not at every try.
type notes struct {
	mu    sync.Mutex // guards the fields below
	said  map[string]time.Time
	began time.Time // when said was last emptied
	count int       // notes since then. Invariant: <= maxNotes
}

// first reports whether the note is new, and remembers it.
func (n *notes) first(what string) bool { return n.after(what, math.MaxInt64) }

// after reports whether the note is new, or was last made at least pause ago, and remembers it.
func (n *notes) after(what string, pause time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if when, ok := n.said[what]; ok && now.Sub(when) < pause {
		return false
	}
	if n.said == nil || n.count >= maxNotes {
		if now.Sub(n.began) < notesTime {
			return false
		}
		n.said, n.began, n.count = make(map[string]time.Time), now, 0
	}
	n.count++
	n.said[what] = now
	return true
}

// worthLogging reports whether to log an error with a node: once for each reason, as long as said remembers it. A
// mismatch of releases is logged once a minute for each node, whichever of the two dials.
func (p *Peers) worthLogging(err error, node ring.NodeID, said *notes, where string) bool {
	if errors.As(err, new(*versionError)) {
		return p.notes.after("versions "+node.String(), notesTime)
	}
	return said.first(where + causeOf(err))
}

// forget lets every note that begins with a host be logged again.
func (n *notes) forget(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.said, func(what string, _ time.Time) bool { return strings.HasPrefix(what, host+" ") })
}

// causeOf tells reasons apart. It returns the text of the innermost error, which does not contain the port of a single
// connection; a refusal contains none anywhere, so its whole text is returned.
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
