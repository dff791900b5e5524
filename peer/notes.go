package peer

import (
	"errors"
	"maps"
	"strings"
	"sync"
)

// mostNotes bounds what is remembered; then all is forgotten, and said again.
const mostNotes = 256

// notes remembers what has been logged, so that it is logged once and not at every try.
type notes struct {
	mu   sync.Mutex // guards said
	said map[string]struct{}
}

// first says whether this is new.
func (n *notes) first(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.said[what]; ok {
		return false
	}
	if n.said == nil || len(n.said) >= mostNotes {
		n.said = make(map[string]struct{})
	}
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
