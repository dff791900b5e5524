package partitions

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxFrozen bounds the partitions that are frozen at once, because their checks wait.
	maxFrozen = 256
	// tokenTimeout bounds how long the answer to a flip or a question may take.
	tokenTimeout = 2 * time.Second
)

// handOver moves tokens to their owners in the next ring, once those have
// complete copies. The caller must hold sendMu.
func (k *Keeper) handOver() {
	state := k.adopted.Load()
	if !state.registered || state.Settled || state.From == nil {
		return
	}
	for _, p := range k.freeze(state) {
		// No counter of a frozen partition changes: its gate is shut, and no debt is
		// debited in phase freezing. So these are the last changes, also without
		// debitMu.
		k.queueChanges(p, k.config.Table.ReplicatePartition(p, nil))
	}
	k.flushAll()
	k.sendTokenMessages(k.prepareFlips(state))
}

// freeze shuts the gates of partitions whose receivers have complete copies, and returns them.
func (k *Keeper) freeze(state *adoptedState) (frozen []int) {
	k.mu.Lock()
	defer k.mu.Unlock()

	room := maxFrozen - k.inPhase[freezing] - k.inPhase[flipping]
	for p := 0; p < ring.Partitions && len(frozen) < room; p++ {
		pt := &k.parts[p]
		from, to := state.Owners(p)
		if pt.phase != owning || from != k.config.Self || to == from || !k.targets.hasCopy(p, to) || !k.canSendTo(to) {
			continue
		}

		k.includeOwnDebts(p)
		pt.setReceiver(state, to)
		pt.frozenAt = time.Now()
		k.setPhase(p, freezing)
		frozen = append(frozen, p)
	}

	return frozen
}

// tokenMessage is a message about tokens to one process of a node: either a flip,
// which offers tokens, or a question, which asks which ones that process has
// taken.
type tokenMessage struct {
	boot        uint64
	isQuestion  bool
	partitions  []int
	flipNumbers []uint64
	body        []byte // one entry for each partition
}

// addToMessage adds a partition to the message for node. The caller must hold mu.
func (k *Keeper) addToMessage(messages map[ring.NodeID]*tokenMessage, state *adoptedState, node ring.NodeID, p int) {
	pt := &k.parts[p]
	t := messages[node]
	if t == nil {
		t = &tokenMessage{boot: state.Boot(node), isQuestion: pt.phase == doubtful}
		messages[node] = t
	}

	t.partitions = append(t.partitions, p)
	t.flipNumbers = append(t.flipNumbers, pt.flipNumber)
	t.body = binary.AppendUvarint(binary.AppendUvarint(t.body, uint64(p)), pt.flipNumber)
	if !t.isQuestion {
		t.body = appendVersion(t.body, pt.version)
	}
}

// sendTokenMessages sends flips or questions to other nodes. The caller must hold
// sendMu.
func (k *Keeper) sendTokenMessages(messages map[ring.NodeID]*tokenMessage) {
	for node, t := range messages {
		body := binary.LittleEndian.AppendUint64(k.nextHeader(nil), t.boot)
		body = append(wire.AppendBool(body, t.isQuestion), t.body...)
		k.config.Calls.Go(node, MethodTokens, body, tokenTimeout, func(reply []byte, err error) {
			var taken map[int]bool
			if err == nil {
				taken, err = parsePartitions(reply)
			}
			k.handleTokensReply(node, t, taken, err)
		})
	}
}

// prepareFlips returns, by receiver, the flips of the frozen partitions whose
// last changes are acknowledged. It sets their phase to flipping.
func (k *Keeper) prepareFlips(state *adoptedState) map[ring.NodeID]*tokenMessage {
	k.mu.Lock()
	defer k.mu.Unlock()

	// A newer state may name another receiver. Its adoption wakes the loop, so the
	// next pass goes on from the newer state.
	if k.adopted.Load() != state {
		return nil
	}

	flips := map[ring.NodeID]*tokenMessage{}
	for p := 0; k.inPhase[freezing] > 0 && p < ring.Partitions; p++ {
		pt := &k.parts[p]
		if pt.phase != freezing {
			continue
		}

		progress := k.targets.progressOf(p, pt.receiver)
		switch {
		case progress == nil:
			k.setPhase(p, owning) // the copy is not complete after all
		case progress.copied && progress.inFlight == 0:
			pt.flipNumber++
			k.setPhase(p, flipping)
			k.addToMessage(flips, state, pt.receiver, p)
		}
	}

	return flips
}

// askDoubtful asks the other sides of moves whether they took the tokens that
// may be here. It reports whether this node is in doubt about any.
func (k *Keeper) askDoubtful() (doubts bool) {
	state := k.adopted.Load()
	questions := map[ring.NodeID]*tokenMessage{}
	k.mu.Lock()

	for p := 0; k.inPhase[doubtful] > 0 && p < ring.Partitions; p++ {
		if k.parts[p].phase != doubtful {
			continue
		}
		doubts = true
		_, to := state.Owners(p)
		if !k.callsInFlight[callKey{to, MethodTokens}] && k.canSendTo(to) {
			k.addToMessage(questions, state, to, p)
		}
	}

	for node := range questions {
		k.callsInFlight[callKey{node, MethodTokens}] = true
	}
	k.mu.Unlock()

	k.sendTokenMessages(questions)
	return doubts
}

// handleTokensReply handles the answer to a flip or a question. Without an
// answer, the tokens may or may not be taken.
func (k *Keeper) handleTokensReply(node ring.NodeID, t *tokenMessage, taken map[int]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if t.isQuestion {
		delete(k.callsInFlight, callKey{node, MethodTokens})
	}

	// A message that is sent again at once would likely fail again, and each flip
	// freezes partitions.
	if err != nil || !t.isQuestion && len(taken) < len(t.partitions) {
		k.backOff(node)
	}

	state := k.adopted.Load()
	for i, p := range t.partitions {
		pt := &k.parts[p]
		if pt.flipNumber != t.flipNumbers[i] {
			continue // a later message has offered the token or asked about it
		}

		switch pt.phase {
		case flipping:
			k.handleFlipReply(node, p, taken[p], err)
		case doubtful:
			_, to := state.Owners(p)
			isOutdated := to != node || state.Boot(node) != t.boot
			if err == nil && !isOutdated { // otherwise this node asks again
				k.handleQuestionReply(state, node, p, taken[p])
			}
		}
	}
}

// handleFlipReply handles the answer to the flip of p's token. The caller must
// hold mu.
func (k *Keeper) handleFlipReply(node ring.NodeID, p int, taken bool, err error) {
	pt := &k.parts[p]

	switch {
	case err != nil:
		// The flip may still be on its way. So this node asks, under a higher number:
		// a receiver that answers "not taken" then declines the flip.
		pt.flipNumber++
		pt.copyComplete = true // these are all counters as of the freeze
		k.setPhase(p, doubtful)

	case taken:
		pt.copyComplete = true // these are all counters as of the freeze
		k.recordHandOver(p, node)
		k.stats.HandOffs++
		k.stats.Frozen += time.Since(pt.frozenAt)

	default:
		// The node declined although it has acknowledged everything, so its copy
		// may not be what this node believes.
		k.targets.forgetCopy(k.targets.targetOf(node), p)
		if k.collecting {
			// A collection in progress discards the changes that follow: see takeToken.
			k.targets.forgetCopies(p)
		}
		k.setPhase(p, owning)
	}
}

// handleQuestionReply handles the answer to the question whether node took p's
// token. The caller must hold mu.
func (k *Keeper) handleQuestionReply(state *adoptedState, node ring.NodeID, p int, taken bool) {
	if taken {
		k.recordHandOver(p, node)
		return
	}

	// If the receiver of the flip itself says that the token is not there, no
	// other node has decided the partition since it was frozen here.
	pt := &k.parts[p]
	k.ownOrSearch(state, p, pt.frozenHere() && !pt.receiverReplaced(state))
}

// recordHandOver records that node has the token of p. Until the ring is
// settled, node pushes its changes here. The caller must hold mu.
func (k *Keeper) recordHandOver(p int, node ring.NodeID) {
	pt := &k.parts[p]
	state := k.adopted.Load()
	// The receiver counts this hand-over in the same way, so its pushes
	// continue the counters here.
	if pt.frozenHere() {
		pt.nextTenure()
	}

	pt.source = node
	pt.setReceiver(state, node)
	k.targets.forgetCopies(p)
	k.setPhase(p, handedOver)
}

// tokenRequest is the flip of a token to a process of this node, or a question
// whether that process has taken the token.
type tokenRequest struct {
	p          int
	sender     peer.Identity
	boot       uint64 // of the process that is asked
	isQuestion bool
	flipNumber uint64
	version    version // how new the receiver's copy must be; zero in a question
}

// acceptTokenMessage takes offered tokens, or answers which tokens are here.
func (k *Keeper) acceptTokenMessage(state *adoptedState, c *peer.Call, d *wire.Decoder) {
	boot, isQuestion := d.Uint64(), d.Bool()
	var taken []int
	k.mu.Lock()

	for d.More() {
		r := tokenRequest{p: decodePartition(d), sender: c.From, boot: boot, isQuestion: isQuestion, flipNumber: d.Uvarint()}
		if !isQuestion {
			r.version = decodeVersion(d)
		}

		if d.Failed() {
			break
		}

		isHere, err := k.handleTokenRequest(state, &r)
		if err != nil {
			d.Failf("%w", err)
		}
		if isHere {
			taken = append(taken, r.p)
		}
	}
	k.mu.Unlock()

	answerCall(c, d, appendPartitions(nil, taken))
}

// handleTokenRequest takes the token if r offers it to this node, and reports
// whether the token is here. If it is not, this node accepts no flip of the
// sender up to this one any more. An error means that the token does not move
// from the sender to this node. The caller must hold mu.
func (k *Keeper) handleTokenRequest(state *adoptedState, r *tokenRequest) (isHere bool, err error) {
	pt := &k.parts[r.p]
	from, to := state.Owners(r.p)
	switch {
	case k.mayTake(state, r):
		k.takeToken(r.p, from)
	case pt.phase == owning:
		// The token was taken before, and the first answer was lost.
	case from != r.sender.Node || to != k.config.Self:
		return false, fmt.Errorf("partition %d does not move from the sender to this node", r.p)
	default:
		pt.declineFlips(r.sender.Boot, r.flipNumber)
	}
	return pt.phase == owning, nil
}

// mayTake reports whether r offers a token that this node may take. The caller
// must hold mu.
func (k *Keeper) mayTake(state *adoptedState, r *tokenRequest) bool {
	// A question offers nothing, and a flip to an earlier process of this node
	// is not for this one.
	if r.isQuestion || r.boot != k.config.Boot {
		return false
	}

	// Both sides must follow the same state, and it must move the partition from
	// the sender to here.
	from, to := state.Owners(r.p)
	if k.adopted.Load() != state || from != r.sender.Node || to != k.config.Self || from == to {
		return false
	}

	// With another copy than the offered one, this node would lack the last changes.
	pt := &k.parts[r.p]
	if pt.phase != away || pt.source != from || pt.version != r.version || !pt.copyComplete {
		return false
	}

	// After the answer "not taken", the sender may have let another node decide.
	if pt.declined.boot == r.sender.Boot && r.flipNumber <= pt.declined.flipNumber {
		return false
	}

	// Without authority, this node could not use the token, and no node would
	// decide the partition.
	return k.config.Authority()
}

// takeToken makes this node the owner of p in from's place. The caller must hold mu.
func (k *Keeper) takeToken(p int, from ring.NodeID) {
	pt := &k.parts[p]
	pt.source = ring.NodeID{}
	pt.copyComplete = false
	pt.nextTenure()

	// The other node has the same counters, so from now on it needs only changes.
	// But if changes for copy targets are being collected, those in p are
	// discarded, so the other node gets a complete copy.
	k.targets.forgetCopies(p)
	if !k.collecting {
		k.targets.targetOf(from).progress[p] = &copyProgress{copied: true}
	}

	k.setPhase(p, owning)
}
