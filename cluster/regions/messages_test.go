package regions

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
)

func FuzzPass(f *testing.F) {
	f.Add(encodeForward("eu", 40, time.Second, []byte("body")))
	f.Add([]byte{forwardFormat, 1, 255, 255, 255, 255, 1, 'x'})
	f.Fuzz(func(t *testing.T, have []byte) {
		region, m, timeout, body, err := parseForward(have)
		if err != nil {
			return
		}
		if region == "" || len(region) > maxRegionLen || timeout > maxCallTime {
			t.Fatalf("have %q, %v", region, timeout)
		}
		again := encodeForward(region, m, timeout, body)
		setTimeout(have, timeout)
		if !bytes.Equal(have, again) {
			t.Fatalf("have %x, want %x", again, have)
		}
	})
}

func FuzzPassed(f *testing.F) {
	for _, err := range []error{nil, ErrNoRoute, peer.ErrTimeout, peer.ErrUnreachable,
		&peer.RemoteError{Code: 3, Detail: "no"}} {
		f.Add(appendOutcome(nil, []byte("reply"), err))
	}
	f.Fuzz(func(t *testing.T, have []byte) {
		reply, err := parseOutcome(have)
		if errors.Is(err, errMessage) {
			return
		}
		if again := appendOutcome(nil, reply, err); !bytes.HasPrefix(have, again) {
			t.Fatalf("have %x of %q, %v, want the beginning of %x", again, reply, err, have)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"entry":true,"regions":[{"Name":"eu","Follows":"us","Reachable":true,"Members":5}],"addresses":["10.0.0.1:7948"]}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, have []byte) {
		a, err := parseReport(have)
		if err != nil {
			if !errors.Is(err, errMessage) {
				t.Error(err)
			}
			return
		}
		if len(a.Regions) > maxRegions || len(a.Addresses) > maxAddresses {
			t.Fatalf("have %d regions, %d addresses", len(a.Regions), len(a.Addresses))
		}
	})
}

func TestBadMessages(t *testing.T) {
	many := make([]Region, maxRegions+1)
	for name, bad := range map[string]entryReport{
		"too many regions": {Regions: many}, "too many addresses": {Addresses: make([]string, maxAddresses+1)},
		"order":            {Regions: []Region{{Name: "b"}, {Name: "a"}}},
		"long name":        {Regions: []Region{{Name: strings.Repeat("r", maxRegionLen+1)}}},
		"long primary":     {Regions: []Region{{Follows: strings.Repeat("r", maxRegionLen+1)}}},
		"members":          {Regions: []Region{{Members: -1}}},
		"too many members": {Regions: []Region{{Members: maxMembers + 1}}},
		"long address":     {Addresses: []string{strings.Repeat("a", maxAddressLen+1)}},
	} {
		b, err := json.Marshal(bad)
		expect.NoError(t, err)
		if a, err := parseReport(b); !errors.Is(err, errMessage) {
			t.Errorf("%s: have %+v", name, a)
		}
	}
	for _, bad := range []string{"", "{", "\x01\x01", `{"entry":1}`} {
		if a, err := parseReport([]byte(bad)); !errors.Is(err, errMessage) {
			t.Errorf("%q: have %+v", bad, a)
		}
	}
	for _, bad := range []string{"", "\x01\x01\x00\x00\x00\x01\x00", "\x02\x01\x00\x00\x00\x01\x01a", "\x01\x01\x00\x00\x00\x01\x05a",
		"\x01\x01\x00\x00\x00\x01\x65" + strings.Repeat("r", 101)} {
		if region, _, _, _, err := parseForward([]byte(bad)); err == nil {
			t.Errorf("%q: have %q", bad, region)
		}
	}
	for _, bad := range []string{"", "\x01", "\x09"} {
		if reply, err := parseOutcome([]byte(bad)); !errors.Is(err, errMessage) {
			t.Errorf("%q: have %q, %v", bad, reply, err)
		}
	}
}

// TestNonsenseFromWithin: a node of the same region sends malformed calls.
func TestNonsenseFromWithin(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		n, entry := w.start(0, 2), w.node(0, 1)
		w.until(5*time.Second, "all know all", w.allReachable)
		for _, test := range []struct {
			m    peer.Method
			body string
		}{{MethodForward, ""}, {MethodForward, "\x01\x01\x00\x00\x00\x01\x09eu"}, {MethodForward,
			strings.Repeat("x", 1000)}} {
			_, err := n.peers.Call(t.Context(), entry.id, test.m, []byte(test.body))
			if remote, ok := errors.AsType[*peer.RemoteError](err); !ok || remote.Code != CodeMessage {
				t.Errorf("%d %q: have %v", test.m, test.body, err)
			}
		}
		// Only entry nodes forward calls, and none to its own region.
		for _, test := range []struct {
			to     *node
			region string
		}{{n, "eu"}, {entry, "ap"}, {entry, "nowhere"}} {
			from := entry
			if test.to == entry {
				from = n
			}
			reply, err := from.peers.Call(t.Context(), test.to.id, MethodForward,
				encodeForward(test.region, methodEcho, time.Second, []byte("x")))
			if err != nil || !slices.Equal(reply, []byte{outcomeNotSent}) {
				t.Errorf("%v to %s: have %q, %v", test.to, test.region, reply, err)
			}
		}
		if w.timesServed("x") != 0 {
			t.Error("the call was forwarded")
		}
	})
}

// TestPassingIsBounded: calls beyond maxForwarding fail with ErrNoRoute at once,
// and all slots are freed again.
func TestPassingIsBounded(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		n := w.start(0, 2)
		w.until(5*time.Second, "all know all", w.allReachable)
		var aways, late int
		ended := make(chan error, 2*maxForwarding)
		for range maxForwarding + 100 {
			n.pool.Load().Go("eu", methodNever, nil, 5*time.Second, func(_ []byte, err error) { ended <- err })
		}
		for range maxForwarding + 100 {
			switch err := <-ended; {
			case isAway(err):
				aways++
			case errors.Is(err, peer.ErrTimeout):
				late++
			default:
				t.Fatal(err)
			}
		}
		if aways != 100 || late != maxForwarding {
			t.Errorf("have %d away and %d late", aways, late)
		}
		w.until(5*time.Second, "all places are free again",
			func() bool { return w.node(0, 1).pool.Load().forwarding.Load() == 0 })
		if _, err := n.call(1, "again", time.Second); err != nil {
			t.Error(err)
		}
	})
}
