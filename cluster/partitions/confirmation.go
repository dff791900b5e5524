package partitions

import (
	"errors"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// Errors of Confirm.
var (
	// ErrNotOwner means that the partition's token is not here, or no longer is.
	ErrNotOwner = errors.New("this node does not own the partition")
	// ErrUnconfirmed means that a copy target can't be reached, or that there is
	// neither a copy target nor a disk.
	ErrUnconfirmed = errors.New("neither a standby nor the disk has the changes")
	// ErrBusy means that too many confirmations are waiting.
	ErrBusy = errors.New("too many confirmations are waiting")
)

// maxConfirms bounds the waiting confirmations.
const maxConfirms = 4096

// errNoCopyTargets ends a confirmation of a partition without copy targets.
var errNoCopyTargets = errors.New("the partition has no copy targets")

// confirmation waits until all copy targets of a partition have the changes made before it.
type confirmation struct {
	p       int
	lineage uint64
	// mustAck holds the last message that each copy target must acknowledge;
	// nil until the changes are sent.
	mustAck map[*copyProgress]uint64
	done    chan error // capacity 1
	// forDebts means that the confirmation is for debts: maxConfirms does not
	// apply, and copy targets that can't be reached don't count.
	forDebts bool
	forNotes bool // it is for notes alone
	dropped  bool // no caller waits for it any more
}

// addConfirmation registers a confirmation for advanceConfirmations.
func (k *Keeper) addConfirmation(c *confirmation) error {
	k.mu.Lock()
	defer k.mu.Unlock()

	switch {
	case k.parts[c.p].phase != owning:
		return ErrNotOwner
	case !c.forDebts && k.boundedConfirms >= maxConfirms:
		return ErrBusy
	}

	if !c.forDebts {
		k.boundedConfirms++
	}

	c.lineage = k.parts[c.p].lineage
	c.done = make(chan error, 1)
	k.confirms = append(k.confirms, c)
	return nil
}

// dropConfirmations forgets confirmations.
func (k *Keeper) dropConfirmations(list ...*confirmation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range list {
		c.dropped = true
		if !c.forDebts {
			k.boundedConfirms--
		}
	}
	k.confirms = slices.DeleteFunc(k.confirms, func(c *confirmation) bool { return c.dropped })
}

// finishConfirmations finishes the confirmations whose result is known. The
// caller must hold mu.
func (k *Keeper) finishConfirmations() {
	state := k.adopted.Load()
	for _, c := range k.confirms {
		if c.mustAck == nil {
			continue // what it waits for is not sent yet
		}

		decided, err := k.checkConfirmation(state, c)
		if !decided {
			continue
		}

		select {
		case c.done <- err:
		default: // the confirmation has its result already, and its caller is about to drop it
		}
	}
}

// checkConfirmation reports whether c's result is known, and returns the
// result. The result is nil once all copy targets of the partition have a
// complete copy and have acknowledged the messages up to c.mustAck. A copy
// begun after these messages includes all changes, because the copy was read
// after them. The caller must hold mu.
func (k *Keeper) checkConfirmation(state *adoptedState, c *confirmation) (decided bool, err error) {
	pt := &k.parts[c.p]
	if pt.phase != owning || pt.lineage != c.lineage {
		return true, ErrNotOwner
	}

	var buf [3]ring.NodeID
	nodes := state.copyTargetsOf(k.config.Self, c.p, buf[:0])
	if len(nodes) == 0 {
		return true, errNoCopyTargets
	}

	for _, node := range nodes {
		if !k.config.Calls.Reachable(node) {
			if c.forDebts {
				continue
			}
			return true, ErrUnconfirmed
		}

		progress := k.targets.progressOf(c.p, node)
		if progress == nil || !progress.copied {
			return false, nil
		}

		inFlight := k.targets.nodes[node].inFlight
		if last, sent := c.mustAck[progress]; sent && len(inFlight) > 0 && inFlight[0] <= last {
			return false, nil
		}
	}

	return true, nil
}
