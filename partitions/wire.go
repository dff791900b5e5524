package partitions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

// The messages between keepers.
const (
	MethodPush      peer.Method = 48 + iota // copies and changes; answered by the partitions that were not taken
	MethodFlip                              // tokens; answered by the partitions that were not taken
	MethodAsk                               // "have you taken these?"; answered by those that were
	MethodPull                              // "give me what you have of these", answered when all of it was given back
	MethodBack                              // what MethodPull asked for
	MethodDebts                             // what was admitted without the owner; answered by what was not taken
	MethodLook                              // "how new are your copies of these?"; answered by findings
	MethodLookEnded                         // the same, of a node that was ended and may not know it
	MethodPullEnded                         // MethodPull, of such a node
)

// How a message can fail.
const (
	codeMalformed peer.Code = 1 + iota
	codeBusy                // too much is waiting; try again
	codeBehind              // the receiver does not know yet what the sender knows
	codeRefused
)

// Flags of a section.
const (
	sectionCopy   = 1 << iota // belongs to a whole copy
	sectionBegins             // the first of one
	sectionEnds               // the last of one
	sectionMore               // of changes: more of the same round follow
)

var errMessage = errors.New("message is malformed")

// header begins every message: what the sender knows at least, and who it is beyond its identity.
type header struct {
	revision   uint64 // the receiver has to know this much of what was agreed
	generation int64
	seq        uint64 // rises from message to message of one process
}

// header appends this node's. It runs in the loop.
func (k *Keeper) header(b []byte) []byte {
	k.seq++
	return k.appendHeader(b, k.seq)
}

func (k *Keeper) appendHeader(b []byte, seq uint64) []byte {
	v := k.view.Load()
	b = binary.AppendUvarint(b, v.Revision)
	b = binary.AppendUvarint(b, uint64(v.Generation(k.cfg.Self)))
	return binary.AppendUvarint(b, seq)
}

// reader reads a message; after an error all reads give zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.err = errMessage
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) varint() int64 {
	if r.err != nil {
		return 0
	}
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.err = errMessage
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) text() string {
	n := r.count()
	if r.err != nil {
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) uint64() uint64 {
	if r.err == nil && len(r.b) < 8 {
		r.err = errMessage
	}
	if r.err != nil {
		return 0
	}
	n := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return n
}

// flag reads a byte that says yes or no.
func (r *reader) flag() bool {
	if r.err == nil && (len(r.b) == 0 || r.b[0] > 1) {
		r.err = errMessage
	}
	if r.err != nil {
		return false
	}
	yes := r.b[0] == 1
	r.b = r.b[1:]
	return yes
}

func (r *reader) partition() int {
	p := r.uvarint()
	if p >= ring.Partitions {
		r.err = fmt.Errorf("%w: partition %d", errMessage, p)
		return 0
	}
	return int(p)
}

// count reads how many things follow, of which each takes at least a byte.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.err = errMessage
		return 0
	}
	return int(n)
}

func (r *reader) header() header {
	return header{revision: r.uvarint(), generation: int64(r.uvarint()), seq: r.uvarint()}
}

// section is a partition's part of a message.
type section struct {
	p int
	order
	flags uint8
	parts uint64 // with sectionEnds: of how many sections the copy is made
}

// pack writes as many of records as make up a message, at least one, and returns how many these are. A log may have
// tens of thousands of entries.
func pack(b []byte, records []counters.Record, now algorithms.Now) ([]byte, int) {
	n := 0
	for n < len(records) && len(b) < messageSize {
		b = counters.AppendRecord(b, &records[n], now)
		n++
	}
	return b, n
}

// appendSection writes a section of n packed records.
func appendSection(b []byte, s section, n int, packed []byte) []byte {
	b = binary.AppendUvarint(b, uint64(s.p))
	b = append(b, s.flags)
	b = appendOrder(b, s.order)
	if s.flags&sectionEnds != 0 {
		b = binary.AppendUvarint(b, s.parts)
	}
	b = binary.AppendUvarint(b, uint64(n))
	return append(b, packed...)
}

func appendOrder(b []byte, o order) []byte {
	b = binary.LittleEndian.AppendUint64(b, o.lineage)
	b = binary.AppendUvarint(b, o.tenure)
	return binary.AppendUvarint(b, o.round)
}

func (r *reader) order() order {
	return order{lineage: r.uint64(), tenure: r.uvarint(), round: r.uvarint()}
}

// section reads a section and hands its records to each.
func (r *reader) section(now algorithms.Now, begin func(section) bool, each func(counters.Record)) {
	var s section
	s.p = r.partition()
	if r.err == nil && len(r.b) == 0 {
		r.err = errMessage
	}
	if r.err != nil {
		return
	}
	s.flags, r.b = r.b[0], r.b[1:]
	s.order = r.order()
	if s.flags&sectionEnds != 0 {
		s.parts = r.uvarint()
	}
	n := r.count()
	if r.err != nil {
		return
	}
	wanted := begin(s)
	var rec counters.Record
	for range n {
		if r.b, r.err = counters.ParseRecord(r.b, &rec, now); r.err != nil {
			return
		}
		if wanted && ring.PartitionOf(rec.Key.Hi) == s.p {
			each(rec)
		}
	}
}

func appendPartitions(b []byte, list []int) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, p := range list {
		b = binary.AppendUvarint(b, uint64(p))
	}
	return b
}

func (r *reader) partitions() []int {
	n := r.count()
	if n > ring.Partitions {
		r.err = errMessage
	}
	if r.err != nil {
		return nil
	}
	list := make([]int, 0, n)
	for range n {
		list = append(list, r.partition())
	}
	return list
}

// indexes reads a list of places below n.
func (r *reader) indexes(n int) map[int]bool {
	list := map[int]bool{}
	for range r.count() {
		i := r.uvarint()
		if i >= uint64(n) {
			r.err = errMessage
			break
		}
		list[int(i)] = true
	}
	return list
}

func parsePartitions(b []byte) ([]int, error) {
	r := reader{b: b}
	list := r.partitions()
	return list, r.err
}

// appendLimit writes a limit; its calendar, if it has one, as "day@Europe/Berlin".
func appendLimit(b []byte, l *algorithms.Limit) []byte {
	b = append(b, byte(l.Kind))
	b = binary.AppendUvarint(b, uint64(l.Amount))
	b = binary.AppendUvarint(b, uint64(l.Burst))
	b = binary.AppendUvarint(b, uint64(l.Window))
	calendar := ""
	if l.Calendar != nil {
		calendar = l.Calendar.String()
	}
	b = binary.AppendUvarint(b, uint64(len(calendar)))
	return append(b, calendar...)
}

// limit reads a limit, which has to be a legal one.
func (r *reader) limit() algorithms.Limit {
	if r.err == nil && len(r.b) == 0 {
		r.err = errMessage
	}
	if r.err != nil {
		return algorithms.Limit{}
	}
	kind := algorithms.Kind(r.b[0])
	r.b = r.b[1:]
	amount, burst, window, calendar := r.uvarint(), r.uvarint(), r.uvarint(), r.text()
	l := algorithms.Limit{Kind: kind, Amount: int64(amount), Burst: int64(burst), Window: time.Duration(window)}
	if r.err == nil && (kind > algorithms.SlidingLog || amount < 1 || amount > algorithms.MaxAmount ||
		burst > algorithms.MaxAmount || kind.Bucket() && burst < 1 ||
		window < uint64(algorithms.MinWindow) || window > uint64(algorithms.MaxWindow)) {
		r.err = fmt.Errorf("%w: a limit is out of bounds", errMessage)
	}
	if r.err == nil && calendar != "" {
		if l.Calendar, r.err = parseCalendar(calendar); kind != algorithms.FixedWindow {
			r.err = fmt.Errorf("%w: a calendar without a fixed window", errMessage)
		}
	}
	return l
}

func parseCalendar(text string) (*algorithms.Calendar, error) {
	word, zone, _ := strings.Cut(text, "@")
	unit, ok := algorithms.ParseCalendarUnit(word)
	if !ok {
		return nil, fmt.Errorf("%w: calendar %.40q", errMessage, text)
	}
	where, err := algorithms.Zone(zone)
	if err != nil {
		return nil, fmt.Errorf("%w: calendar %.40q", errMessage, text)
	}
	return algorithms.NewCalendar(unit, where), nil
}
