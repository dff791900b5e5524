package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Four hundred reservations over HTTP, fifty at a time, settled at other nodes.
// What is consumed equals, to the token, what was settled plus what was
// reserved and not settled.
func TestReservationsOverHTTP(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[0].apply(`version: 1
rules:
  - name: model
    key: [tenant]
    limits: [{limit: 1000000000, per: year, unit: tokens}, {limit: 1000000, per: year}]`)
	var want, requests, wrong atomic.Int64
	var done sync.WaitGroup
	for w := range 50 {
		done.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(w), 1))
			for range 8 {
				estimate := 1 + chance.Int64N(5000)
				at, other := f.nodes[chance.IntN(3)], f.nodes[chance.IntN(3)]
				var a struct{ Reservation string }
				body := fmt.Sprintf(`{"rule":"model","key":"acme","costs":{"tokens":%d},"ttl_ms":60000}`, estimate)
				status, text, err := at.call("POST", at.data+"/v1/reserve", "", body)
				if err != nil || status != 200 || json.Unmarshal([]byte(text), &a) != nil {
					t.Errorf("reserve: %v %d %s", err, status, text)
					return
				}
				requests.Add(1)
				if chance.IntN(10) == 0 {
					want.Add(estimate)
					continue
				}
				used := chance.Int64N(estimate * 5 / 4)
				settle := func(n *fleetNode, id string, used int64) (int, string) {
					status, text, err := n.call("POST", n.data+"/v1/settle", "",
						fmt.Sprintf(`{"reservation":%q,"costs":{"tokens":%d}}`, id, used))
					if err != nil {
						t.Errorf("settle: %v", err)
					}
					return status, text
				}
				status, first := settle(other, a.Reservation, used)
				if status != 200 ||
					!strings.Contains(first, fmt.Sprintf(`"settled":true,"costs":{"tokens":%d},"remaining":`, used)) {
					t.Errorf("settle: %d %s", status, first)
				}
				want.Add(used)
				status, again := settle(at, a.Reservation, used+1)
				if status != 200 || strings.Replace(again, `"repeated":true`, `"repeated":false`, 1) != first {
					wrong.Add(1)
				}
				forged := []byte(a.Reservation)
				forged[chance.IntN(len(forged)-2)] ^= 1
				if status, _ := settle(other, string(forged), 0); status != 404 {
					wrong.Add(1)
				}
			}
		})
	}
	done.Wait()
	n := f.nodes[2]
	_, text, err := n.call("GET", n.admin+"/v1/usage?rule=model&key=acme", "", "")
	for _, used := range []int64{want.Load(), requests.Load()} {
		if err != nil || !strings.Contains(text, fmt.Sprintf(`"used":%d,`, used)) {
			t.Errorf("have %s, %v, want %d used", text, err, used)
		}
	}
	if wrong.Load() > 0 {
		t.Errorf("%d repeated or forged settlings got a wrong answer", wrong.Load())
	}
}
