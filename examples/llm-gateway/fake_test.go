package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/rlnode/rlnode/client"
)

// deniedKey is the API key on the fake node's deny list.
const deniedKey = "denied"

// fakeNode implements /v1/reserve and /v1/settle for one rule with 20 requests
// and 2,000 tokens, which are never replenished.
type fakeNode struct {
	*httptest.Server

	mu      sync.Mutex // guards the fields below
	left    map[string]int64
	open    map[string]int64 // tokens by reservation
	settled []int64          // tokens, in the order of settlements
	asked   []map[string]string
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{left: map[string]int64{requests: 20, tokens: 2000}, open: map[string]int64{}}
	n.Server = httptest.NewServer(n)
	t.Cleanup(n.Close)
	return n
}

func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch r.URL.Path {
	case "/v1/reserve":
		n.reserve(w, r)
	case "/v1/settle":
		n.settle(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"status":404,"code":"not-found"}`)
	}
}

func (n *fakeNode) reserve(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Attributes map[string]string
		Costs      map[string]int64
		TTL        int64 `json:"ttl_ms"`
	}
	json.NewDecoder(r.Body).Decode(&q)
	n.asked = append(n.asked, q.Attributes)
	if q.Attributes["api_key"] == client.Fingerprint(deniedKey) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w,
			`{"status":403,"code":"denied","allowed":false,"rule":"","retry_after_ms":-1,"decided_by":"list"}`)
		return
	}
	cost := map[string]int64{requests: 1, tokens: q.Costs[tokens]}
	answer := map[string]any{
		"allowed": true, "rule": "llm", "unit": tokens, "limit": 2000, "window_ms": 60000,
		"reset_after_ms": 6000, "retry_after_ms": 0,
		"delay_ms": 0, "decided_by": "owner", "node": "fake", "rules_version": 1,
	}
	for unit, c := range cost {
		if c > n.left[unit] {
			answer["allowed"], answer["unit"], answer["retry_after_ms"] = false, unit, 3500
		}
	}
	status := http.StatusTooManyRequests
	if answer["allowed"] == true {
		status = http.StatusOK
		for unit, c := range cost {
			n.left[unit] -= c
		}
		id := fmt.Sprint("id-", len(n.open)+len(n.settled))
		n.open[id] = cost[tokens]
		answer["reservation"] = id
	}
	answer["remaining"] = n.left[tokens]
	answer["limits"] = []map[string]any{
		{"rule": "llm", "name": "rpm", "unit": requests, "limit": 20, "remaining": n.left[requests],
			"reset_after_ms": 3000, "allowed": true},
		{"rule": "llm", "name": "tpm", "unit": tokens, "limit": 2000, "remaining": n.left[tokens],
			"reset_after_ms": 360000, "allowed": true},
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

func (n *fakeNode) settle(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Reservation string
		Costs       map[string]int64
	}
	json.NewDecoder(r.Body).Decode(&q)
	reserved, ok := n.open[q.Reservation]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"status":404,"code":"unknown-reservation"}`)
		return
	}
	delete(n.open, q.Reservation)
	n.left[tokens] += reserved - q.Costs[tokens]
	n.settled = append(n.settled, q.Costs[tokens])
	json.NewEncoder(w).Encode(map[string]any{"reservation": q.Reservation, "settled": true,
		"costs": q.Costs, "remaining": n.left[tokens]})
}

// state returns what was settled so far, how many reservations are open, and the tokens left.
func (n *fakeNode) state() (settled []int64, open int, left int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]int64(nil), n.settled...), len(n.open), n.left[tokens]
}
