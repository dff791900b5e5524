package agreement

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// KeptDepartures is how many nodes are remembered that left by command, or that
// an operator removed.
const KeptDepartures = 1024

// Departure says that a node left by command, or that an operator removed it.
// The node's ID can't be used again. Its process may still run, but no later
// process with this ID becomes a member.
type Departure struct {
	Node ring.NodeID `json:"node"`
	Name string      `json:"name,omitempty"`
	Boot uint64      `json:"boot,omitempty"` // the node's last registered process; 0 if there was none
	By   string      `json:"by,omitempty"`
	When int64       `json:"when,omitempty"` // Unix milliseconds, by the leader's clock
	Left bool        `json:"left,omitempty"` // it left by command
}

// Depart records a departure. It is rejected if the node is in a ring.
type Depart struct {
	Departure
}

func (e Depart) apply(next *State) Result {
	switch {
	case e.Node.IsZero():
		return rejected("the node is zero")
	case next.InRing(e.Node):
		return rejected("%s is in a ring", e.Node)
	case len(e.Name) > maxText || len(e.By) > maxText:
		return rejected("the name of %s or of who removes it has more than %d bytes", e.Node, maxText)
	}

	d := e.Departure
	d.Boot = next.Boot(e.Node)
	list := slices.DeleteFunc(slices.Clone(next.Departed), func(other Departure) bool { return other.Node == e.Node })
	list = append(list, d)
	next.Departed = list[max(0, len(list)-KeptDepartures):]

	return Result{}
}

// Departure returns a node's departure, or nil if the node has not departed or
// its departure was forgotten. The result is read-only.
func (s *State) Departure(id ring.NodeID) *Departure {
	at := slices.IndexFunc(s.Departed, func(d Departure) bool { return d.Node == id })
	if at < 0 {
		return nil
	}
	return &s.Departed[at]
}

// String says how the node departed, and how it can come back.
func (d *Departure) String() string {
	how := "was removed"
	by := " by " + d.By
	if d.Left {
		how = "left"
		by = " by command of " + d.By
	}
	if d.By == "" {
		by = ""
	}
	return fmt.Sprintf("%s%s on %s; start it with --rejoin", how, by,
		time.UnixMilli(d.When).UTC().Format("2006-01-02 15:04 UTC"))
}

// checkDepartures returns an error if no entries could have produced
// s.Departed.
func (s *State) checkDepartures() error {
	if len(s.Departed) > KeptDepartures {
		return fmt.Errorf("%d departures are kept, more than %d", len(s.Departed), KeptDepartures)
	}
	for i, d := range s.Departed {
		again := slices.ContainsFunc(s.Departed[:i], func(other Departure) bool { return other.Node == d.Node })
		if d.Node.IsZero() || again || len(d.Name) > maxText || len(d.By) > maxText || d.When > math.MaxInt64/2 {
			return fmt.Errorf("the departure of %s is not possible", d.Node)
		}
	}
	return nil
}
