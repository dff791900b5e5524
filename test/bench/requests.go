package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// benchRules are the rules of the nodes. Each has its own attribute, so that
// one rule decides a check.
//
// The rules that never refuse are buckets that are never empty and, because
// they refill slowly, never full either: every check changes a counter that
// must be kept, as in real use.
const benchRules = `version: 1
rules:
  - name: plenty
    key: [user]
    limits: [{limit: 10000, per: 1h, algorithm: token-bucket, burst: 1000000000}]
  - name: exact
    key: [account]
    consistency: exact
    limits: [{limit: 10000, per: 1h, algorithm: token-bucket, burst: 1000000000}]
  - name: small-window
    key: [session]
    limits: [{limit: 30, per: 24h, algorithm: fixed-window}]
  - name: small-bucket
    key: [device]
    limits: [{limit: 30, per: 24h, algorithm: token-bucket}]
`

// slotRules are more rules, which programs of before slots don't know.
const slotRules = `  - name: slots
    key: [worker]
    limits: [{limit: 1000000, ttl: 60s, algorithm: concurrency}]
`

// smallLimit is the limit of the two rules that have to refuse: enough for
// leases, and soon used up.
const smallLimit = 30

// The key attributes of the rules.
const (
	plenty      = "user"
	exact       = "account"
	smallWindow = "session"
	smallBucket = "device"
)

// keyName returns key number i as callers write it.
func keyName(i int) string { return fmt.Sprintf("key-%07d", i) }

// checkBody returns a check of one attribute.
func checkBody(attribute, key string) string {
	return `{"attributes":{"` + attribute + `":"` + key + `"}}`
}

// inlineBody returns a check with an inline limit, that of the rule plenty.
func inlineBody(key string) string {
	return `{"key":"` + key + `","limits":[{"limit":10000,"per":"1h","algorithm":"token-bucket","burst":1000000000}]}`
}

// checks returns requests with a single check, one for each key.
func checks(attribute string, keys []string) [][]byte {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = postRequest("/v1/check", checkBody(attribute, key))
	}
	return all
}

// inlineChecks returns requests with a single check and an inline limit, one for each key.
func inlineChecks(keys []string) [][]byte {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = postRequest("/v1/check", inlineBody(key))
	}
	return all
}

// batches returns n requests for size checks each, of keys drawn evenly. body
// returns the check of a key.
func batches(n, size int, keys []string, body func(key string) string) [][]byte {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(size)))
	all := make([][]byte, n)
	for i := range all {
		bodies := make([]string, size)
		for j := range bodies {
			bodies[j] = body(keys[rng.IntN(len(keys))])
		}
		all[i] = batchRequest(bodies)
	}
	return all
}

func batchRequest(bodies []string) []byte {
	return postRequest("/v1/check/batch", `{"checks":[`+strings.Join(bodies, ",")+`]}`)
}

// postRequest returns an encoded request.
func postRequest(path, body string) []byte {
	return fmt.Appendf(nil,
		"POST %s HTTP/1.1\r\nHost: rlnode.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, len(body), body)
}

// keysUpTo returns the names of the first n keys.
func keysUpTo(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = keyName(i)
	}
	return all
}

// caller makes occasional requests to a server, when speed does not matter.
type caller struct{ http.Client }

func newCaller() *caller {
	return &caller{http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}}
}

// get returns the body of an answer with status 200.
func (c *caller) get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	_, body, err := c.do(request)
	return body, err
}

// post returns headers and body of an answer with status 200. The request's
// body is the part of raw after its head.
func (c *caller) post(ctx context.Context, address string, raw []byte) (http.Header, []byte, error) {
	head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	path := string(bytes.Fields(head)[1])
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, fmt.Errorf("make a request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	return c.do(request)
}

func (c *caller) do(request *http.Request) (http.Header, []byte, error) {
	response, err := c.Do(request)
	if err != nil {
		return nil, nil, fmt.Errorf("ask %s: %w", request.URL.Host, err)
	}

	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read the answer of %s: %w", request.URL.Host, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s answers %d: %.300s", request.URL.Host, response.StatusCode, body)
	}

	return response.Header, body, nil
}
