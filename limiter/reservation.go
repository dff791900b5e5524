package limiter

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// Bounds of reservations.
const (
	// MaxReserved bounds the limits of a reservation.
	MaxReserved = 256
	// MaxReservationTime bounds how long a reservation can be settled.
	MaxReservationTime = time.Hour
	// keptSettling is how long after a reservation expires its settlement is remembered.
	keptSettling = time.Minute

	reservationForm = 2  // the first byte of an id
	nonceBytes      = 12 // random bytes that make each id unique
	signatureBytes  = 16
	maxUnitBytes    = 1024
	// maxNames bounds the total size of the subjects' names in an id, in bytes. Further names are left out: what their
	// settlement changes is not billed.
	maxNames     = 16 << 10
	maxKeyValues = 32
)

// Errors of reservations.
var (
	// ErrUnknownReservation means that the id is not that of a reservation that can still be settled.
	ErrUnknownReservation = errors.New("unknown reservation")
	// ErrReservation means that the check has too many limits for one reservation.
	ErrReservation = fmt.Errorf("a reservation is about %d limits at most", MaxReserved)
)

// reservation is what a check took, from which counters, and when: enough for any node to settle it. It is not stored anywhere;
// the signature proves which cluster made it.
type reservation struct {
	nonce    [nonceBytes]byte
	made     int64 // Unix nanoseconds, by the clock that aligns windows
	until    int64
	units    []string
	subjects []reserved // the partition of the first is the home, where the settlement is recorded
}

// reserved is what was taken of one subject.
type reserved struct {
	debit
	units []int // by op: index into reservation.units

	// For billing. If rule is empty, the subject is not billed.
	lo   uint64 // of the subject's hash
	rule string
	key  []string
}

func (r *reservation) home() *reserved { return &r.subjects[0] }

// Code implements wire.Message.
func (r *reservation) Code(c *wire.Coder) {
	life := r.until - r.made
	c.Raw(r.nonce[:])
	wire.Fixed(c, &r.made)
	wire.Number(c, &life, int64(MaxReservationTime))
	r.until = r.made + life
	c.Texts(&r.units, MaxReserved, maxUnitBytes)
	wire.List(c, &r.subjects, MaxReserved, 4*8+2+1+1, func(s *reserved) {
		s.code(c)
		wire.List(c, &s.units, maxSubjectOps, 1, func(n *int) { wire.Number(c, n, int64(len(r.units)-1)) })
		if c.Text(&s.rule, maxUnitBytes); s.rule != "" {
			wire.Fixed(c, &s.lo)
			if c.Texts(&s.key, maxKeyValues, maxUnitBytes); s.key == nil {
				s.key = []string{} // the rule may have no key; nil would mean an unknown key
			}
		}
		c.Require(len(s.units) == len(s.ops))
	})
	c.Require(len(r.subjects) > 0)
}

// id packs and signs r.
func (r *reservation) id(key []byte) string {
	b := wire.Encode([]byte{reservationForm}, r)
	return base64.RawURLEncoding.EncodeToString(append(b, signature(key, b)...))
}

func signature(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:signatureBytes]
}

// parseReservation reads an id that was signed with key. The error is ErrUnknownReservation.
func parseReservation(id string, key []byte) (*reservation, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(raw) <= signatureBytes {
		return nil, ErrUnknownReservation
	}
	b := raw[:len(raw)-signatureBytes]
	if !hmac.Equal(raw[len(b):], signature(key, b)) {
		return nil, ErrUnknownReservation
	}
	r := &reservation{}
	if b[0] != reservationForm || wire.Decode(b[1:], r, "reservation") != nil {
		return nil, ErrUnknownReservation
	}
	return r, nil
}

// note returns the key under which the settlement of a unit is recorded.
func (r *reservation) note(unit int) counters.Key {
	h := sha256.Sum256(binary.AppendUvarint(r.nonce[:], uint64(unit)))
	return counters.Key{Hi: r.home().hi, Lo: binary.LittleEndian.Uint64(h[:])}
}

// signingKey returns the key that signs ids: the cluster's or, while that is not known, this process's own, which no other node
// can read.
func (x *reservations) signingKey() (key []byte, known bool) {
	if x.l.member == nil || x.l.member.Secret == nil {
		return x.ownKey[:], true
	}
	secret := x.l.member.Secret()
	if len(secret) == 0 {
		return x.ownKey[:], false
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("reservation"))
	return h.Sum(nil), true
}

func newNonce() (n [nonceBytes]byte) {
	_, _ = rand.Read(n[:])
	return n
}
