package peer

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
)

// TestGolden: preambles keep their encoding.
func TestGolden(t *testing.T) {
	node := Identity{Node: nodeID(3), Boot: 1<<63 + 5, Name: "n1", Region: "eu",
		Cluster: [16]byte{1, 15: 2}, Release: "v1.0.0"}
	preambles := []struct {
		name string
		preamble
	}{
		{"peer", preamble{versions{2, 2}, byte(kindNear), node.appendBinary(nil)}},
		{"raft", preamble{versions{2, 3}, byte(kindRaft), node.appendBinary(nil)}},
		{"far", preamble{versions{2, 3}, byte(kindFar), node.appendBinary(nil)}},
		{"tunnel", preamble{versions{2, 3}, byte(kindTunnel), node.appendBinary(nil)}},
		{"via", preamble{versions{2, 3}, byte(kindNear | viaTunnel), node.appendBinary(nil)}},
		{"welcome", preamble{versions{3, 255}, answerWelcome, node.appendBinary(nil)}},
		{"later",
			preamble{versions{3, 4}, answerWelcome, append(node.appendBinary(nil), "what later releases add"...)}},
		{"refused", preamble{versions{2, 2}, answerRefused, []byte("no")}},
	}
	var lines []golden.Line
	for _, p := range preambles {
		var b bytes.Buffer
		expect.NoError(t, p.write(&b))
		lines = append(lines, golden.Line{Name: p.name, Bytes: b.Bytes()})
	}
	for i, b := range golden.Check(t, "testdata/preambles.txt", lines...) {
		want := preambles[i]
		if have, err := readPreamble(bytes.NewReader(b)); err != nil || !reflect.DeepEqual(have, want.preamble) {
			t.Errorf("%s: have %v, %v", want.name, have, err)
		}
		if have, err := parseIdentity(want.body); want.name != "refused" && (err != nil || have != node) {
			t.Errorf("%s: have %+v, %v", want.name, have, err)
		}
	}
}

// TestGoldenMessages: messages keep their encoding.
func TestGoldenMessages(t *testing.T) {
	messages := []message{
		{kind: messageCall, methodOrCode: 80, id: 1 << 40, body: []byte("call")},
		{kind: messageSend, methodOrCode: 255, body: []byte("send")},
		{kind: messageReply, id: 1 << 40, body: []byte("reply")},
		{kind: messageFailure, methodOrCode: 7, id: 9}, {kind: messageBeat},
	}
	var lines []golden.Line
	for i, m := range messages {
		head := m.head()
		lines = append(lines, golden.Line{Name: fmt.Sprint("kind-", i+1), Bytes: append(head[:], m.body...)})
	}
	for i, b := range golden.Check(t, "testdata/messages.txt", lines...) {
		read := 0
		if err := new(assembler).feed(b, func(m message) error {
			read++
			if m.head() != messages[i].head() || !bytes.Equal(m.body, messages[i].body) {
				t.Errorf("have %v, want %v", m, messages[i])
			}
			return nil
		}); err != nil || read != 1 {
			t.Errorf("%s: read %d messages, %v", lines[i].Name, read, err)
		}
	}
}

func TestIdentitiesRoundTrip(t *testing.T) {
	for _, want := range []Identity{
		{}, {Node: nodeID(3), Boot: 1 << 63, Name: "ein Name", Cluster: [16]byte{1, 15: 2}},
		{Name: "n1", Region: "eu"}, {Region: strings.Repeat("r", maxRegion), Release: "v1"},
	} {
		have, err := parseIdentity(want.appendBinary(nil))
		if err != nil || have != want {
			t.Errorf("have %v, %v, want %v", have, err, want)
		}
	}
	x := strings.Repeat("x", 1000)
	have, err := parseIdentity(Identity{Name: x, Region: x, Release: x}.appendBinary(nil))
	if err != nil || len(have.Name) != maxName || len(have.Region) != maxRegion || len(have.Release) != maxRelease {
		t.Errorf("have %v, %v", have, err)
	}
	good := Identity{Name: "n", Region: "r", Release: "v"}.appendBinary(nil)
	for n := range good {
		if have, err := parseIdentity(good[:n]); err == nil {
			t.Errorf("%d bytes: have %v", n, have)
		}
	}
	for _, at := range []int{42, 44} { // the lengths of region and release
		bad := bytes.Clone(good)
		bad[at] = 101
		if have, err := parseIdentity(append(bad, x...)); err == nil {
			t.Errorf("have %v", have)
		}
	}
}

func FuzzPreamble(f *testing.F) {
	f.Add([]byte("rlnode\x03\x02\x02\x01\x00\x05hello"))
	var far bytes.Buffer
	_ = preamble{supportedVersions, byte(kindFar),
		Identity{Node: nodeID(1), Name: "n1", Region: "eu", Release: "v1"}.appendBinary(nil)}.write(&far)
	f.Add(far.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		p, err := readPreamble(r)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := p.write(&again); err != nil || !bytes.Equal(again.Bytes(), b[:len(b)-r.Len()]) {
			t.Errorf("have %q from %q", again.Bytes(), b)
		}
		if i, err := parseIdentity(p.body); err == nil && !bytes.HasPrefix(p.body, i.appendBinary(nil)) {
			t.Errorf("identity %v from %q", i, p.body)
		}
	})
}

func withVersions(lowest, highest uint8) option {
	return func(c *Config, n *node) {
		c.versions = versions{lowest, highest}
		n.self.Release = fmt.Sprintf("r%d", highest)
	}
}

// protocol returns the protocol version of the connection from one node to another.
func (n *node) protocol(to *node) uint8 { return (*n.links.Load())[to.id].currentConn().socket.version }

// TestVersions: two nodes use the highest version that both support, whichever of them dials.
func TestVersions(t *testing.T) {
	for _, test := range []struct {
		ours, theirs versions
		want         uint8
	}{
		{versions{2, 2}, versions{1, 2}, 2},
		{versions{2, 2}, versions{2, 3}, 2},
		{versions{2, 3}, versions{1, 2}, 2},
		{versions{2, 3}, versions{2, 3}, 3},
		{versions{2, 3}, versions{3, 4}, 3},
		{versions{1, 4}, versions{2, 3}, 3},
	} {
		t.Run(fmt.Sprint(test.ours, test.theirs), func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				a, b := w.node(1, withVersions(test.ours.lowest, test.ours.highest)), w.node(2,
					withVersions(test.theirs.lowest, test.theirs.highest))
				w.connect(a, b)
				w.echo(a, b, "hello")
				w.echo(b, a, "hello")
				if have, back := a.protocol(b), b.protocol(a); have != test.want || back != test.want {
					t.Errorf("have version %d, and %d in the other direction, want %d", have, back, test.want)
				}
				if have, _ := a.Remote(b.id); have.Release != b.self.Release {
					t.Errorf("have %+v", have)
				}
				fake := w.dialer()(a.address) // its answer ends the handshake
				if _, have, err := exchangePreambles(fake, kindRaft, Identity{Node: nodeID(7)},
					test.theirs); err != nil || have != test.want {
					t.Errorf("have %d, %v", have, err)
				}
			})
		})
	}
}

// TestNoVersionInCommon: the error names both nodes, their versions, and the
// release that one of them needs. Each end logs it once a minute, however often
// they try, and whichever node dials.
func TestNoVersionInCommon(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		old, young, third := w.node(1, withVersions(1, 2)), w.node(2, withVersions(3, 4)), w.node(3, withVersions(2, 3))
		old.knows(young, third)
		young.knows(old, third)
		third.knows(old, young)
		w.connected(third, old)
		w.connected(third, young)
		if old, young := third.protocol(old), third.protocol(young); old != 2 || young != 3 {
			t.Errorf("the node that supports both versions uses %d and %d", old, young)
		}
		for from, to := range map[*node]*node{old: young, young: old} {
			_, _, err := from.CallAt(t.Context(), to.address, methodEcho, nil)
			if !errors.Is(err, ErrRefused) || !errors.Is(err, ErrUnreachable) {
				t.Errorf("have %v", err)
			}
			for _, part := range []string{
				`(node-1, release "r2") speaks versions 1 to 2`, `(node-2, release "r4") speaks versions 3 to 4`,
				`node-1 needs a release that speaks version 3, as release "r4" does`,
			} {
				if !strings.Contains(fmt.Sprint(err), part) {
					t.Errorf("%q is not in %q", part, err)
				}
			}
		}
		time.Sleep(10*time.Minute - 10*time.Second)
		for _, n := range []*node{old, young} {
			if have := n.log.Count("needs a release"); have < 9 || have > 10 {
				t.Errorf("logged %d times in ten minutes:\n%s", have, n.log)
			}
			if lines := n.log.Count("\n"); lines > 20 {
				t.Errorf("%d lines were logged:\n%s", lines, n.log)
			}
		}
		if old.Reachable(young.id) || young.Reachable(old.id) {
			t.Error("they are connected")
		}
	})
}
