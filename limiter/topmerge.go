package limiter

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	maxTop = 1000 // subjects that Top lists
	// maxTopKept bounds the subjects of one node's list: all that it keeps.
	maxTopKept = topStripes * topCapacity
	// maxTopBytes bounds a node's list as it is sent; what does not fit any more was refused least.
	maxTopBytes = 4 << 20
	maxKeyParts = 32
)

// topEverywhere gathers the lists of this node and of all others that answer in time.
func (l *Limiter) topEverywhere() []TopSubject {
	all := l.topHere()
	l.member.gather(MethodTop, func(_ ring.NodeID, reply []byte) {
		list, _ := readTop(reply) // a list that can't be read is left out
		all = append(all, list...)
	})
	return all
}

// merged adds up what several nodes say of one subject.
func merged(all []TopSubject) []TopSubject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, s := range all {
		// Lengths keep different keys from looking alike.
		name := string(appendTopName(nil, s.Rule, s.Key))
		if i, ok := at[name]; ok {
			out[i].Refused += s.Refused
			out[i].Checks += s.Checks
			continue
		}
		at[name] = len(out)
		out = append(out, s)
	}
	return out
}

func appendTopName(b []byte, rule string, key []string) []byte {
	return wire.AppendTexts(wire.AppendText(b, rule), key)
}

func appendTop(b []byte, list []TopSubject) []byte {
	for i := range list {
		b = appendTopName(b, list[i].Rule, list[i].Key)
		b = binary.AppendUvarint(b, uint64(list[i].Refused))
		b = binary.AppendUvarint(b, uint64(list[i].Checks))
		if len(b) > maxTopBytes {
			break
		}
	}
	return b
}

func readTop(body []byte) (list []TopSubject, err error) {
	const maxText = 1 << 20
	d := wire.NewDecoder(body)
	for d.More() && len(list) < maxTopKept {
		list = append(list, TopSubject{
			Rule: strings.ToValidUTF8(d.Text(maxText), "\uFFFD"), Key: d.Texts(maxKeyParts, maxText),
			Refused: d.UpTo(1 << 62), Checks: d.UpTo(1 << 62),
		})
	}
	if err := d.Done("list of subjects"); err != nil {
		return nil, err
	}
	return slices.Clip(list), nil
}
