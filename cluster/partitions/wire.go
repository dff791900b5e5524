package partitions

import (
	"encoding/binary"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Messages between keepers.
const (
	// MethodPush brings copies and changes; the reply lists the partitions that the
	// receiver declined.
	MethodPush peer.Method = 48 + iota
	// MethodTokens offers tokens, or asks whether the receiver has taken them; the
	// reply lists those that it has.
	MethodTokens
	// MethodCopyInfo asks how new the receiver's copies of partitions are; the
	// reply has findings.
	MethodCopyInfo
	MethodPull   // asks for copies of partitions; the reply follows after all of them
	MethodCopies // the copies that a MethodPull asked for
	MethodDebts  // debts; the reply has a byte for each
)

// Failure codes of a message.
const (
	codeMalformed peer.Code = 1 + iota
	codeBusy                // the receiver's queue is full, or it merges copies; try again
	codeBehind              // the receiver has an older agreed state than the sender
	codeRefused             // the receiver must not do it, or can't now: the text says why
)

// Flags of a section.
const (
	sectionCopy   = 1 << iota // part of a complete copy
	sectionBegins             // the first section of a copy
	sectionEnds               // the last section of a copy
	sectionMore               // changes only: more of the same round follow
)

// messageSize is the size in bytes at which a message is full and is sent.
const messageSize = 128 << 10

// header begins every message. It has the sender's revision and generation,
// which the sender's peer identity lacks.
type header struct {
	revision   uint64 // the receiver must have applied the agreed state up to here
	generation int64
	seq        uint64 // of pushes and flips: rises from message to message of one process; otherwise 0
}

// nextHeader appends this node's header with the next number. The caller must hold sendMu.
func (k *Keeper) nextHeader(b []byte) []byte {
	k.seq++
	return k.appendHeader(b, k.seq)
}

// appendHeader appends this node's header with the number seq.
func (k *Keeper) appendHeader(b []byte, seq uint64) []byte {
	state := k.adopted.Load()
	b = binary.AppendUvarint(b, state.Revision)
	b = binary.AppendUvarint(b, uint64(state.Generation(k.config.Self)))
	return binary.AppendUvarint(b, seq)
}

func decodePartition(d *wire.Decoder) int { return int(d.UpTo(ring.Partitions - 1)) }

// answerCall replies to a call, or fails it if d could not decode its message to the end.
func answerCall(c *peer.Call, d *wire.Decoder, reply []byte) {
	if err := d.Done("message"); err != nil {
		c.Fail(codeMalformed, err.Error())
		return
	}
	c.Reply(reply)
}

// section is the part of a message about one partition.
type section struct {
	p int
	version
	flags         uint8
	sectionNumber uint64 // of this section in the copy, or in the round; the first is 1
	// wall is the reading of the clock by which the sender counts the partition's
	// windows, after it collected the records.
	wall int64
}

// append writes s with as many of the records as fill a message. It writes at
// least one, if there are any: one record with a long log may be larger than a
// message. It returns the remaining records, and turns s into the head of their
// section.
func (s *section) append(b []byte, records []counters.Record, now algorithms.Instant) ([]byte, []counters.Record) {
	s.sectionNumber++
	b = binary.AppendUvarint(b, uint64(s.p))
	flagsAt := len(b)
	b = append(b, s.flags)
	b = binary.AppendUvarint(appendVersion(b, s.version), s.sectionNumber)
	b = binary.AppendVarint(b, s.wall)

	b = append(b, 0, 0, 0, 0) // the number of records, which is not known yet
	begin := len(b)
	n := 0
	for n < len(records) && len(b) < begin+messageSize {
		b = counters.AppendRecord(b, &records[n], now)
		n++
	}
	binary.LittleEndian.PutUint32(b[begin-4:], uint32(n))

	if n < len(records) {
		b[flagsAt] &^= sectionEnds
		// The receiver must not count the round before it has the rest of it.
		if s.flags&sectionCopy == 0 {
			b[flagsAt] |= sectionMore
		}
	}

	s.flags &^= sectionBegins
	return b, records[n:]
}

func appendVersion(b []byte, v version) []byte {
	b = binary.LittleEndian.AppendUint64(b, v.lineage)
	b = binary.AppendUvarint(b, v.tenure)
	return binary.AppendUvarint(b, v.round)
}

func decodeVersion(d *wire.Decoder) version {
	return version{lineage: d.Uint64(), tenure: d.Uvarint(), round: d.Uvarint()}
}

// decodeSection reads a section. It calls begin with the section's head and, if
// begin returns true, each with every record of the partition.
func decodeSection(d *wire.Decoder, now algorithms.Instant, begin func(section) bool, each func(counters.Record)) {
	s := section{p: decodePartition(d), flags: d.Byte(), version: decodeVersion(d),
		sectionNumber: d.Uvarint(), wall: d.Varint()}
	n := d.Uint32()

	if d.Failed() {
		return
	}

	wanted := begin(s)
	var rec counters.Record
	for range n {
		counters.DecodeRecord(d, &rec, now)
		if d.Failed() {
			return
		}

		// Ignore records of other partitions: begin has checked s.p alone.
		if wanted && ring.PartitionOf(rec.Key.Subject) == s.p {
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

func decodePartitions(d *wire.Decoder) []int {
	list := make([]int, d.Count(ring.Partitions, 1))
	for i := range list {
		list[i] = decodePartition(d)
	}
	return list
}

// parsePartitions reads an answer that lists partitions.
func parsePartitions(b []byte) (map[int]bool, error) {
	d := wire.NewDecoder(b)
	list := map[int]bool{}
	for _, p := range decodePartitions(d) {
		list[p] = true
	}
	return list, d.Done("list of partitions")
}

func appendCopyInfo(b []byte, p int, info copyInfo) []byte {
	return appendVersion(wire.AppendBool(binary.AppendUvarint(b, uint64(p)), info.whole), info.version)
}

func parseCopyInfos(b []byte) (map[int]copyInfo, error) {
	d := wire.NewDecoder(b)
	found := map[int]copyInfo{}
	for d.More() {
		p := decodePartition(d)
		found[p] = copyInfo{whole: d.Bool(), version: decodeVersion(d)}
	}
	return found, d.Err()
}
