package limiter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
)

// A request with an id is decided once. The owner keeps the answer as a note
// with the subject's counters, so that copies and hand-overs carry the answer
// along. If the request is repeated, the owner returns that answer.

const (
	// MaxRequestID bounds an id, in bytes.
	MaxRequestID = 64
	// answerLife is how long the owner keeps an answer.
	answerLife = time.Minute
	// retryGrace is how long after the last retry the owner keeps the answer to a
	// request that a node retries by itself.
	retryGrace = 2 * time.Second
	// maxRetryLife is the longest time for which the answer to such a request is
	// kept. It is below answerLife, because ticket.kind recognizes such requests by
	// a shorter keepFor.
	maxRetryLife = answerLife - time.Second
)

// Errors of requests with an id.
var (
	// ErrRequestIDReused means that an earlier request about the same subject had
	// the same id but asked for something else.
	ErrRequestIDReused = errors.New("request_id: another request about this subject has used this id within the last minute; choose a new id for each request")
	// ErrTooManyRequestIDs means that the owner keeps too many answers to writes.
	// The owner has changed nothing.
	ErrTooManyRequestIDs = fmt.Errorf("request_id: the subject's owner has %w", notes.ErrWrites)
)

// ticket identifies a request to the owner of its subject.
type ticket struct {
	id          uint64 // derived from the caller's id, or random
	contentHash uint64 // hash of the request's content
	keepFor     time.Duration
	sent        bool // another node may have carried it out; set only on the first node
}

// ticketOf returns the ticket for a caller's id. Without an id the ticket is
// random: this node retries the request by itself, for the duration tries.
func ticketOf(id string, contentHash uint64, tries time.Duration) *ticket {
	if id == "" {
		return &ticket{id: rand.Uint64(), contentHash: contentHash, keepFor: tries + retryGrace}
	}
	h := sha256.Sum256([]byte("request " + id))
	return &ticket{id: binary.LittleEndian.Uint64(h[:]), contentHash: contentHash, keepFor: answerLife}
}

// kind returns the kind of note that keeps the answer to a request that is not
// a check. A request that nodes retry by themselves is never refused for lack
// of room.
func (tk *ticket) kind() notes.Kind {
	if tk.keepFor < answerLife {
		return notes.Retry
	}
	return notes.Write
}

// isUnneeded reports whether the request can do without the ticket: no other
// node can have carried it out, and no caller will repeat it.
func (tk *ticket) isUnneeded() bool {
	return tk == nil || !tk.sent && tk.keepFor <= checkTimeout+retryGrace
}

// memo returns the ticket's memo, which is kept with the subject's counters.
func (tk *ticket) memo(subject counters.Key, kind notes.Kind, now algorithms.Instant) *counters.Memo {
	return &counters.Memo{
		Key:    notes.Key{Subject: subject.Subject, ID: tk.id, Kind: kind},
		Inline: subject.IsInline(), ContentHash: tk.contentHash, Until: (now.Steady+int64(tk.keepFor))/1e9 + 1,
	}
}

// Code implements wire.Message.
func (tk *ticket) Code(c *wire.Coder) {
	wire.Fixed(c, &tk.id)
	wire.Fixed(c, &tk.contentHash)
	c.Millis(&tk.keepFor, answerLife)
}

// hashContent hashes a request's content.
func hashContent(b []byte) uint64 {
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:])
}

// requests tracks the requests with an id that this node is deciding.
type requests struct {
	mu sync.Mutex
	// deciding has a channel for each request that is being decided. The channel
	// is closed once the request is decided. mu guards the map.
	deciding map[notes.Key]chan struct{}

	repeated atomic.Int64
}

// lock waits until this node is deciding no other request with the key, or ctx
// ends. If ok, other requests with the key then wait until unlock is called.
func (rq *requests) lock(ctx context.Context, key notes.Key) (unlock func(), ok bool) {
	finished := make(chan struct{})
	for {
		rq.mu.Lock()
		other := rq.deciding[key]
		if other == nil {
			rq.deciding[key] = finished
		}
		rq.mu.Unlock()

		if other == nil {
			return func() {
				// Delete the key first, so that the waiters find it free when they wake up.
				rq.mu.Lock()
				delete(rq.deciding, key)
				rq.mu.Unlock()
				close(finished)
			}, true
		}

		select {
		case <-other:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// requestError returns err as an error of a request with an id.
func requestError(err error) error {
	switch {
	case errors.Is(err, counters.ErrRequestIDReused):
		return ErrRequestIDReused
	case errors.Is(err, notes.ErrWrites):
		return ErrTooManyRequestIDs
	}
	return err
}
