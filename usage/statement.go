package usage

import (
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// version names a ledger and the round up to which a node has everything.
type version struct {
	Month  Month  `json:"month"`
	Number uint64 `json:"number"`
	Round  uint64 `json:"round"`
}

// statement is what a node says about itself: which ledgers it has, up to which round.
type statement struct {
	Source  ring.NodeID `json:"source"`
	Name    string      `json:"name"`
	Boot    uint64      `json:"boot"`    // of its process
	Started int64       `json:"started"` // when the process began, by its own clock, in Unix nanoseconds
	// Number rises with each statement of the process; unlike ledgerID.Number it is
	// not random.
	Number uint64 `json:"number"`
	// AsOf is a time by the holder's clock, in Unix nanoseconds. The rounds in
	// Ledgers include all that the node counted before that time.
	AsOf    int64     `json:"as_of"`
	Final   bool      `json:"final"` // the process counts nothing more
	Ledgers []version `json:"ledgers"`
}

// has reports whether the node has a ledger, up to any round: the ledger
// itself, or a merged one in known that replaces it.
func (st *statement) has(v version, known []holding) bool {
	return slices.ContainsFunc(st.Ledgers, func(have version) bool {
		if have.Month == v.Month && have.Number == v.Number {
			return true
		}

		mayBeMerged := ledgerID{have.Month, st.Source, have.Number}
		return slices.ContainsFunc(known, func(h holding) bool {
			return h.Ledger == mayBeMerged && h.replaces(ledgerID{v.Month, st.Source, v.Number})
		})
	})
}

// missing returns the ledgers of a statement that are not among those that are held.
func (st *statement) missing(held []holding) (list []version) {
	for _, v := range st.Ledgers {
		if !covers(held, ledgerID{v.Month, st.Source, v.Number}, v.Round) {
			list = append(list, v)
		}
	}
	return list
}

// copyHeader is the header of a MethodCopy message. If it names a ledger,
// blocks of the ledger follow. With neither a ledger nor a statement, the
// message only asks for the holder's time.
type copyHeader struct {
	Ledger    ledgerID   `json:"ledger,omitzero"`
	Statement *statement `json:"statement,omitempty"`
	Sent      []step     `json:"sent,omitempty"`
}

// step says that a holder now has everything of an open ledger up to the round
// To, if it had everything up to From.
type step struct {
	Ledger  ledgerID `json:"ledger"`
	Node    string   `json:"node"`
	Damaged bool     `json:"damaged,omitempty"`
	From    uint64   `json:"from"` // 0: the messages had all rows
	To      uint64   `json:"to"`
}

// copyReply is the reply to a MethodCopy message.
type copyReply struct {
	Now     int64     `json:"now"`               // the holder's clock, in Unix nanoseconds
	Missing []version `json:"missing,omitempty"` // ledgers of the statement that it does not have up to their rounds
}
