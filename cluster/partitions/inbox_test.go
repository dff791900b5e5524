package partitions

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
)

// A small push is handled where it was read, but never before one that arrived
// earlier, nor while its sender's state must be waited for.
func TestKeeper_PushesStayInOrder(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		k := f.all()[0].keeper.Load()

		// The other nodes send messages, too.
		settle := func() {
			for synctest.Wait(); k.queued.Load() > 0; synctest.Wait() {
				time.Sleep(time.Millisecond)
			}
		}
		settle()
		push := func(revision uint64) *peer.Call {
			generationAndSeq := []byte{0, 0}
			return &peer.Call{Method: MethodPush, Body: append(binary.AppendUvarint(nil, revision), generationAndSeq...)}
		}
		queued := func(want int64, when string) {
			t.Helper()
			expect.Equal(t, k.queued.Load(), want, "messages that wait, %s", when)
		}

		k.enqueue(push(0))
		queued(0, "after a push that none is in front of")

		k.enqueue(push(1 << 40))
		queued(1, "after a push of a state that this node has not applied")

		k.enqueue(push(0))
		queued(2, "after a push behind it")

		time.Sleep(2 * catchUpTimeout)
		settle()

		k.receiveMu.Lock()
		k.enqueue(push(0))
		queued(1, "after a push while another is handled")
		k.receiveMu.Unlock()

		settle()
	})
}
