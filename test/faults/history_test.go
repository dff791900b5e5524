//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rlnode/rlnode/internal/expect"
)

// rulesOp is a read or a write of the rules.
type rulesOp struct {
	write bool
	match int64 // If-Match; 0: none
	value int   // written
}

// rulesResult is the outcome of a rulesOp.
type rulesResult struct {
	unknown  bool
	conflict bool
	version  int64
	value    int // read
}

// rulesState is the state of the rules: a version and the number in it.
type rulesState struct {
	version int64
	value   int
}

// rulesModel is the expected behaviour of the rules: a single document in one place.
func rulesModel(begin rulesState) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return begin },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(rulesState), input.(rulesOp), output.(rulesResult)
			if !in.write {
				return out.version == s.version && out.value == s.value, s
			}
			fits := in.match == 0 || in.match == s.version
			switch {
			case fits && (out.unknown || !out.conflict && out.version == s.version+1):
				return true, rulesState{s.version + 1, in.value}
			case !fits && (out.unknown || out.conflict):
				return true, s
			}
			return false, s // a write with unknown outcome that was never made is ordered last
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
	}
}

// history collects the reads and writes of clients on all nodes.
type history struct {
	fleet *fleet
	begin rulesState
	stop  chan struct{}
	done  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	ops     []porcupine.Operation
	acked   map[int64]int // version → value
	value   int
	stale   int
	unknown int
}

// history starts clients, one or two per node.
func (f *fleet) history(clients int) *history {
	f.t.Helper()
	h := &history{fleet: f, stop: make(chan struct{}), acked: map[int64]int{}}
	version, value, _, err := readRules(f.nodes[0])
	expect.NoError(f.t, err)
	h.begin, h.value = rulesState{version, value}, value
	for c := range clients {
		random := rand.New(rand.NewPCG(f.random.Uint64(), uint64(c)))
		h.done.Go(func() { h.client(c, random) })
	}
	return h
}

// client reads and writes at its node. If the node is down or paused, the
// client waits and then turns to another one.
func (h *history) client(c int, random *rand.Rand) {
	known := h.begin.version
	for i := 0; ; i++ {
		select {
		case <-h.stop:
			return
		case <-time.After(time.Duration(100+random.IntN(300)) * time.Millisecond):
		}
		n := h.fleet.nodes[(c+i/8)%len(h.fleet.nodes)]
		if n.is() != live {
			continue
		}
		switch random.IntN(4) {
		case 0, 1:
			known = max(known, h.read(c, n))
		case 2:
			known = max(known, h.write(c, n, 0))
		case 3:
			known = max(known, h.write(c, n, known))
		}
	}
}

// readRules reads the rules at n. It returns the version, and the number in it.
func readRules(n *node) (version int64, value int, stale bool, err error) {
	status, header, text, err := n.callFor(4*time.Second, "GET", 8081, "/v1/rules", "", nil)
	if err != nil || status != 200 {
		return 0, 0, false, fmt.Errorf("%s: read rules: %d %w", n.name, status, err)
	}
	if version, err = strconv.ParseInt(strings.Trim(header.Get("ETag"), `"`), 10, 64); err != nil {
		return 0, 0, false, err
	}
	value, err = numberIn(text)
	return version, value, header.Get("Rlnode-Stale") == "true", err
}

// numberIn finds the number that rulesText has written.
func numberIn(text string) (int, error) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r < '0' || '9' < r }) {
		if n, err := strconv.Atoi(word); err == nil && n >= 1_000_000 && n < 2_000_000 {
			return n - 1_000_000, nil
		}
	}
	return 0, fmt.Errorf("no number in %q", text)
}

func (h *history) read(c int, n *node) int64 {
	sent := boottime()
	version, value, stale, err := readRules(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	if stale {
		h.stale++
	}
	if err != nil || stale {
		return 0 // tells nothing
	}
	h.add(c, rulesOp{}, rulesResult{version: version, value: value}, sent)
	return version
}

func (h *history) write(c int, n *node, match int64) int64 {
	h.mu.Lock()
	h.value++
	op := rulesOp{write: true, match: match, value: h.value}
	h.mu.Unlock()
	header := map[string]string{}
	if match != 0 {
		header["If-Match"] = fmt.Sprintf(`"%d"`, match)
	}
	sent := boottime()
	status, _, text, err := n.call("PUT", 8081, "/v1/rules", rulesText(op.value, h.fleet.rules), header)
	h.mu.Lock()
	defer h.mu.Unlock()
	var answer struct {
		Version int64
		Code    string
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	switch {
	case err == nil && status == 200:
		h.acked[answer.Version] = op.value
		h.add(c, op, rulesResult{version: answer.Version}, sent)
	case err == nil && status == 412:
		h.add(c, op, rulesResult{conflict: true}, sent)
	case err == nil && status == 503 && answer.Code == "no-leader":
		// certainly not made
	default:
		h.unknown++
		h.add(c, op, rulesResult{unknown: true}, sent)
	}
	return answer.Version
}

// add records an operation that ends now or, if its outcome is unknown, at some
// later time. The caller must hold mu.
func (h *history) add(c int, op rulesOp, result rulesResult, sent int64) {
	o := porcupine.Operation{ClientId: c, Input: op, Call: sent, Output: result, Return: boottime()}
	if result.unknown {
		o.Return = 1 << 62
	}
	h.ops = append(h.ops, o)
}

// end stops the clients.
func (h *history) end() {
	close(h.stop)
	h.done.Wait()
}

// judge reads at all nodes once more, and checks that all operations can have
// happened in some sequence.
func (h *history) judge() {
	t := h.fleet.t
	t.Helper()
	for i, n := range h.fleet.nodes {
		within(t, agreeTime, n.name+" reads what is in force", func() string {
			if h.read(-1-i, n) == 0 {
				return "no answer, or a stale one"
			}
			return ""
		})
	}
	h.judgeVersions()
	for i := range h.ops {
		h.ops[i].ClientId = i // a client continues after an unknown outcome, so each operation needs its own ID
	}
	t.Logf("%d operations, %d writes acknowledged, %d of unknown outcome, %d reads marked stale",
		len(h.ops), len(h.acked), h.unknown, h.stale)
	result, info := porcupine.CheckOperationsVerbose(rulesModel(h.begin), h.ops, time.Minute)
	switch result {
	case porcupine.Illegal:
		t.Error("the history of the rules is not linearizable")
		h.explain(info)
	case porcupine.Unknown:
		t.Error("porcupine found no answer within a minute")
	}
}

// explain saves porcupine's visualization, or prints what it knows.
func (h *history) explain(info porcupine.LinearizationInfo) {
	if dir := os.Getenv("FAULTS_LOGS"); dir != "" {
		path := filepath.Join(dir, h.fleet.t.Name()+".html")
		h.fleet.t.Logf("see %s (%v)", path, porcupine.VisualizePath(rulesModel(h.begin), info, path))
		return
	}
	for _, o := range h.ops {
		h.fleet.t.Logf("%d…%d %+v → %+v", o.Call, o.Return, o.Input, o.Output)
	}
}

// judgeVersions looks for acknowledged writes among the last versions of each
// node. Each read waits for an entry of Raft's log, so it asks the nodes
// concurrently.
func (h *history) judgeVersions() {
	var all sync.WaitGroup
	for _, n := range h.fleet.nodes {
		all.Go(func() { h.judgeVersionsOf(n) })
	}
	all.Wait()
}

func (h *history) judgeVersionsOf(n *node) {
	t := h.fleet.t
	var list struct {
		Versions []struct{ Version int64 }
	}
	if err := n.get("/v1/rules/versions", &list); err != nil {
		t.Error(err)
		return
	}
	found := 0
	for _, v := range list.Versions {
		want, acked := h.acked[v.Version]
		if !acked {
			continue
		}
		status, _, text, err := n.call("GET", 8081, fmt.Sprintf("/v1/rules?version=%d", v.Version), "", nil)
		have, wrong := numberIn(text)
		if err != nil || wrong != nil || have != want {
			t.Errorf("%s: version %d: have %d (%d, %v, %v), want %d, which was acknowledged",
				n.name, v.Version, have, status, err, wrong, want)
		}
		found++
	}
	if found < min(len(h.acked), 10) {
		t.Errorf("%s: only %d of %d acknowledged versions are listed", n.name, found, len(h.acked))
	}
}

func TestCheckHistory(t *testing.T) {
	write := func(match int64, value int, out rulesResult, call, ret int64) porcupine.Operation {
		return porcupine.Operation{Input: rulesOp{true, match, value}, Output: out, Call: call, Return: ret}
	}
	read := func(version int64, value int, call, ret int64) porcupine.Operation {
		return porcupine.Operation{Input: rulesOp{},
			Output: rulesResult{version: version, value: value}, Call: call, Return: ret}
	}
	const open = 1 << 62
	for _, test := range []struct {
		name string
		ops  []porcupine.Operation
		want bool
	}{
		{"write, read", []porcupine.Operation{write(0, 7, rulesResult{version: 2}, 1, 2), read(2, 7, 3, 4)}, true},
		{"a read that is behind",
			[]porcupine.Operation{write(0, 7, rulesResult{version: 2}, 1, 2), read(1, 0, 3, 4)}, false},
		{"a read meanwhile", []porcupine.Operation{write(0, 7, rulesResult{version: 2}, 1, 4), read(1, 0, 2, 3)}, true},
		{"a lost write",
			[]porcupine.Operation{write(0, 7, rulesResult{version: 2}, 1, 2),
				write(0, 8, rulesResult{version: 2}, 3, 4)},
			false},
		{"If-Match twice",
			[]porcupine.Operation{write(1, 7, rulesResult{version: 2}, 1, 3),
				write(1, 8, rulesResult{version: 2}, 2, 4)},
			false},
		{"If-Match, and a conflict",
			[]porcupine.Operation{write(1, 7, rulesResult{version: 2}, 1, 3),
				write(1, 8, rulesResult{conflict: true}, 2, 4)},
			true},
		{"a conflict with nothing", []porcupine.Operation{write(1, 8, rulesResult{conflict: true}, 2, 4)}, false},
		{"unknown, and made",
			[]porcupine.Operation{write(0, 7, rulesResult{unknown: true}, 1, open), read(2, 7, 8, 9)},
			true},
		{"unknown, and not made",
			[]porcupine.Operation{write(0, 7, rulesResult{unknown: true}, 1, open), read(1, 0, 8, 9)},
			true},
		{"unknown, made and undone", []porcupine.Operation{
			write(0, 7, rulesResult{unknown: true}, 1, open), read(2, 7, 3, 4), read(1, 0, 5, 6),
		}, false},
		{"unknown, made twice",
			[]porcupine.Operation{write(0, 7, rulesResult{unknown: true}, 1, open), read(3, 7, 8, 9)},
			false},
	} {
		for i := range test.ops {
			test.ops[i].ClientId = i
		}
		expect.Equal(t, porcupine.CheckOperations(rulesModel(rulesState{1, 0}), test.ops), test.want, "%s", test.name)
	}
	if n, err := numberIn(rulesText(17, commonRules())); n != 17 || err != nil {
		t.Errorf("number: have %d, %v, want 17", n, err)
	}
}
