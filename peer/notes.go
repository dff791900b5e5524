package peer

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"time"
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
	said  map[string]struct{}
	began time.Time // of what follows
	count int       // of what was said since. Invariant: <= mostNotes
}

// first says whether this is new.
func (n *notes) first(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.said[what]; ok {
		return false
	}
	if n.said == nil || n.count >= mostNotes {
		if time.Since(n.began) < notesTime {
			return false
		}
		n.said, n.began, n.count = make(map[string]struct{}), time.Now(), 0
	}
	n.count++
	n.said[what] = struct{}{}
	return true
}

// forget lets everything that begins with a host be said again.
func (n *notes) forget(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.said, func(what string, _ struct{}) bool { return strings.HasPrefix(what, host+" ") })
}

// causeOf tells reasons apart: it is the text of the error at the bottom, which has no port of a single connection in it;
// a refusal has none anywhere.
func causeOf(err error) string {
	if errors.Is(err, ErrRefused) {
		return err.Error()
	}
	for {
		var next error
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			next = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				next = all[len(all)-1]
			}
		}
		if next == nil {
			return textOf(err)
		}
		err = next
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

var errRestarted = errors.New("the node has been started again")
