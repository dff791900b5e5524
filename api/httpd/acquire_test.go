package httpd

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const slotRules = `
version: 1
rules:
  - {name: render, key: [tenant], limits: [{limit: 2, ttl: 10s, algorithm: concurrency}]}
  - name: model
    key: [user]
    limits:
      - {limit: 20, ttl: 60s, algorithm: concurrency}
      - {limit: 100, per: 1h, unit: tokens, algorithm: fixed-window}
  - {name: rate, key: [a], limits: [{limit: 1, per: 1h}]}
  - {name: shadow, key: [b], shadow: true, limits: [{limit: 1, ttl: 10s, algorithm: concurrency}]}
  - {name: blocks, key: [c], block: 1h, limits: [{limit: 1, ttl: 10s, algorithm: concurrency}]}
`

func startWithSlots(t *testing.T, change func(*apitest.Config)) *node {
	t.Helper()
	return startNode(t, func(c *apitest.Config) {
		doc, err := document.Parse([]byte(slotRules))
		expect.NoError(t, err)
		set, err := rules.Compile(doc, 2)
		expect.NoError(t, err)
		c.Decider.(*limiter.Limiter).SetRules(set)
		if change != nil {
			change(c)
		}
	})
}

// call posts a body, expects a status, and returns the answer's fields.
func (n *node) call(path, body string, status int) map[string]any {
	n.T.Helper()
	have, text := n.post(path, body)
	if have != status {
		n.T.Fatalf("%s %s: have %d %s\nwant %d", path, body, have, text, status)
	}
	return apitest.Fields(n.T, text)
}

func (n *node) acquire(body string) (slot string) {
	n.T.Helper()
	slot, _ = n.call("/v1/acquire", body, 200)["slot"].(string)
	if slot == "" {
		n.T.Fatalf("no slot in the answer to %s", body)
	}
	return slot
}

// slotBody is the body of a call about a slot.
func slotBody(id string) string { return fmt.Sprintf(`{"slot":%q}`, id) }

func TestAcquireRenewRelease(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	const body = `{"rule":"render","key":"acme"}`

	first := n.call("/v1/acquire", body, 200)
	if left := number(first["expires_ms"]); !(left > 9_900 && left < 10_000) ||
		number(first["used"]) != 1 || number(first["remaining"]) != 1 ||
		number(first["limit"]) != 2 || number(first["reset_after_ms"]) != 10_000 {
		t.Errorf("have %v", first)
	}
	second := n.acquire(body)
	resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/acquire", Body: body})
	if policy := resp.Header.Get("RateLimit-Policy"); policy != `"render";q=2;qu="concurrent-requests"` {
		t.Errorf("RateLimit-Policy is %s", policy)
	}
	refused := apitest.Fields(t, text)
	if retry := number(refused["retry_after_ms"]); resp.StatusCode != 429 ||
		!(retry > 5_000 && retry <= 10_000) || refused["slot"] != nil {
		t.Errorf("the third: have %d %s", resp.StatusCode, text)
	}
	if peeked := n.call("/v1/check", `{"rule":"render","key":"acme","peek":true}`, 429); number(peeked["used"]) != 2 {
		t.Errorf("a peek: have %v", peeked)
	}
	if text := fmt.Sprint(n.call("/v1/check", body, 400)["detail"]); !strings.Contains(text, "/v1/acquire") {
		t.Errorf("a check: %s", text)
	}

	if renewed := n.call("/v1/renew", slotBody(second), 200); !(number(renewed["expires_ms"]) > 9_900) {
		t.Errorf("have %v", renewed)
	}
	for i, want := range []bool{true, false} {
		expect.Equal(t, n.call("/v1/release", slotBody(second), 200)["released"], any(want), "release %d", i)
	}
	expect.Equal(t, n.call("/v1/renew", slotBody(second), 404)["code"], "unknown-slot",
		"a renewal of what was released")
	n.acquire(body)
	if text := fmt.Sprint(n.call("/v1/usage", body, 200)); !strings.Contains(text, "holders:2") ||
		!strings.Contains(text, "who:127.0.0.1") {
		t.Errorf("usage: %s", text)
	}
	n.call("/v1/reset", body, 200)
	n.acquire(`{"rule":"render","key":"acme","n":2}`)
}

// TestASlotIsFreed: an operator releases a single one, by the id that usage lists.
func TestASlotIsFreed(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	for _, subject := range []string{`"rule":"model","key":"acme"`,
		`"key":"acme","limits":[{"limit":3,"ttl":"9s","algorithm":"concurrency"}]`} {
		body := "{" + subject + "}"
		held := n.acquire(body)
		listed := func() []any {
			return n.call("/v1/usage", body, 200)["limits"].([]any)[0].(map[string]any)["slots"].([]any)
		}
		first := fmt.Sprint(listed()[0].(map[string]any)["slot"])
		other := n.acquire(body)

		if left := n.call("/v1/reset", fmt.Sprintf(`{%s,"slot":%q}`, subject, first),
			200); !strings.Contains(fmt.Sprint(left), "holders:1") {
			t.Errorf("have %v", left)
		}
		n.call("/v1/renew", slotBody(held), 404)
		n.call("/v1/renew", slotBody(other), 200)
		for _, slot := range []string{first, "zz", "0" + first, held} {
			expect.Equal(t,
				n.call("/v1/reset", fmt.Sprintf(`{%s,"slot":%q}`, subject, slot), 404)["code"],
				"unknown-slot", "%s", slot)
		}
		n.call("/v1/reset", fmt.Sprintf(`{%s,"slot":%q,"limit_name":"x"}`, subject, first), 400)
		n.call("/v1/reset", fmt.Sprintf(`{%s,"slot":""}`, subject), 400)
		if rest := listed(); len(rest) != 1 {
			t.Errorf("have %v", rest)
		}
	}
	n.call("/v1/reset", `{"namespace":"inline","key":"acme","slot":"0123456789abcdef"}`, 400)
	n.call("/v1/reset", `{"rule":"rate","key":"acme","slot":"0123456789abcdef"}`, 404)
}

// All limits of a rule are decided together; a release gives back slots alone.
func TestSlotsBesideTokens(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	remaining := func() (slots, tokens float64) {
		t.Helper()
		limits := n.call("/v1/usage", `{"rule":"model","key":"u"}`, 200)["limits"].([]any)
		return number(limits[0].(map[string]any)["remaining"]), number(limits[1].(map[string]any)["remaining"])
	}
	slot := n.acquire(`{"rule":"model","key":"u","costs":{"tokens":60}}`)
	n.call("/v1/acquire", `{"rule":"model","key":"u","costs":{"tokens":60}}`, 429)
	if slots, tokens := remaining(); slots != 19 || tokens != 40 {
		t.Errorf("%v slots and %v tokens are left, want 19 and 40", slots, tokens)
	}
	n.call("/v1/release", slotBody(slot), 200)
	if slots, tokens := remaining(); slots != 20 || tokens != 40 {
		t.Errorf("after the release, %v slots and %v tokens are left, want 20 and 40", slots, tokens)
	}

	reserved := n.call("/v1/reserve", `{"rule":"model","key":"u","costs":{"tokens":40}}`, 200)
	if reserved["slot"] == nil || !(number(reserved["expires_ms"]) > 59_000) {
		t.Fatalf("a reservation: have %v", reserved)
	}
	settling := fmt.Sprintf(`{"reservation":%q,"costs":{"tokens":10}}`, reserved["reservation"])
	n.call("/v1/settle", settling, 200)
	if slots, tokens := remaining(); slots != 20 || tokens != 30 {
		t.Errorf("after settling, %v slots and %v tokens are left, want 20 and 30", slots, tokens)
	}
	n.call("/v1/settle", settling, 200)
	n.call("/v1/renew", slotBody(reserved["slot"].(string)), 404)
}

func TestSlotForms(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	for body, want := range map[string]int{
		// more than there are
		`{"rule":"render","key":"x","n":3}`:                                                       429,
		`{"rule":"render","key":"x","ttl_ms":10001}`:                                              400,
		`{"rule":"render","key":"x","ttl_ms":9}`:                                                  400,
		`{"rule":"render","key":"x","n":0}`:                                                       400,
		`{"rule":"render","key":"x","n":1000001}`:                                                 400,
		`{"rule":"render","key":"x","peek":true}`:                                                 400,
		`{"rule":"render","key":"x","mode":"count"}`:                                              400,
		`{"rule":"render","key":"x","who":"` + strings.Repeat("w", 33) + `"}`:                     400,
		`{"rule":"rate","key":"x"}`:                                                               400,
		`{"rule":"none","key":"x"}`:                                                               404,
		`{"attributes":{"tenant":"y"}}`:                                                           200,
		`{"namespace":"n","key":"k","limits":[{"limit":1,"ttl":"1m","algorithm":"concurrency"}]}`: 200,
		`{"namespace":"n","key":"k","limits":[{"limit":1,"ttl_ms":9,"algorithm":"concurrency"}]}`: 400,
		`{"key":"k","limits":[{"limit":1,"per":"1m","algorithm":"concurrency"}]}`:                 400,
		`{"key":"k","limits":[{"limit":1,"ttl":"1m"}]}`:                                           400,
		`{"key":"k","limits":[{"limit":0,"ttl":"1m","algorithm":"concurrency"}]}`:                 400,
		`{"key":"k","limits":[{"limit":1000001,"ttl":"1m","algorithm":"concurrency"}]}`:           400,
		`{"key":"k","limits":[{"limit":1,"ttl":"25h","algorithm":"concurrency"}]}`:                400,
		`{"subjects":[{"key":"k","limits":[{"limit":1,"ttl":"1m","algorithm":"concurrency"}]},` +
			`{"key":"l","limits":[{"limit":9,"per":"1m"}]}]}`: 200,
		`{"subjects":[{"key":"k","mode":"peek","limits":[{"limit":1,"ttl":"1m","algorithm":"concurrency"}]}]}`: 400,
	} {
		if status, text := n.post("/v1/acquire", body); status != want {
			t.Errorf("%s: have %d %s, want %d", body, status, text, want)
		}
	}
	n.call("/v1/release", slotBody("no-slot"), 404)
	n.call("/v1/renew", `{}`, 400)
}

// A repeated request gets its slot again, as it is by then, and takes nothing else.
func TestRepeatedAcquire(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	const body = `{"rule":"model","key":"u","costs":{"tokens":30},"request_id":"one"}`
	slot := n.acquire(body)
	expect.Equal(t, n.acquire(body), slot, "the repeat")
	n.call("/v1/acquire", `{"rule":"model","key":"u","n":2,"request_id":"one"}`, 409)
	n.call("/v1/acquire", `{"rule":"model","key":"u","costs":{"tokens":31},"request_id":"one"}`, 409)
	limits := n.call("/v1/usage", `{"rule":"model","key":"u"}`, 200)["limits"].([]any)
	expect.Equal(t, number(limits[1].(map[string]any)["used"]), 30, "tokens are used")

	n.call("/v1/release", slotBody(slot), 200)
	if anew := n.acquire(body); anew == slot {
		t.Error("a slot that was released came back")
	}
	n.call("/v1/release", slotBody(slot), 200) // late: it must not touch the new one
	limits = n.call("/v1/usage", `{"rule":"model","key":"u"}`, 200)["limits"].([]any)
	expect.Equal(t, number(limits[0].(map[string]any)["used"]), 1, "slots are used")
}

// A request that has the id of another one, and so finds its slot, gets no more
// than that one, whatever it asks for and of which subjects.
func TestAcquireWithTheIDOfAnother(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	const subject = `"key":"%s","limits":[{"limit":4,"ttl":"1m","algorithm":"concurrency"}]`
	a, b := fmt.Sprintf(subject, "a"), fmt.Sprintf(subject, "b")
	n.acquire(`{` + a + `,"request_id":"one"}`)
	for range 3 {
		n.acquire(`{` + a + `}`)
	}
	status, text := n.post("/v1/acquire", `{"subjects":[{`+b+`},{`+a+`}],"n":4,"request_id":"one"}`)
	if status == 200 {
		t.Errorf("have %d %s", status, text)
	}
}

// A shadow limit counts up to twice of it, and refuses nobody. A want of slots begins no block.
func TestSlotsInShadowAndBlocks(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	for range 4 {
		id := n.acquire(`{"rule":"shadow","key":"x"}`)
		n.call("/v1/renew", slotBody(id), 200)
	}
	limits := n.call("/v1/usage", `{"rule":"shadow","key":"x"}`, 200)["limits"].([]any)
	expect.Equal(t, number(limits[0].(map[string]any)["used"]), 2, "shadow slots are used")

	id := n.acquire(`{"rule":"blocks","key":"x"}`)
	n.call("/v1/acquire", `{"rule":"blocks","key":"x"}`, 429)
	n.call("/v1/release", slotBody(id), 200)
	n.acquire(`{"rule":"blocks","key":"x"}`)
}

// Where there is no room for more slots, the answer says so, and others still find some.
func TestTooManySlots(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, nil)
	n.Table.Notes().BoundSlots(100 << 10)
	const limits = `,"limits":[{"limit":1000000,"ttl":"1m","algorithm":"concurrency"}]}`
	status, text := 200, ""
	for i := 0; status == 200 && i < 1000; i++ {
		status, text = n.post("/v1/acquire", `{"key":"k"`+limits)
	}
	if code := apitest.Fields(t, text)["code"]; status != 503 || code != "too-many-slots" {
		t.Fatalf("have %d %s", status, text)
	}
	n.acquire(`{"rule":"render","key":"other"}`)
	n.acquire(`{"key":"other"` + limits)
}

// lostOwner is a decider that can't reach the owner of any slot.
type lostOwner struct{ api.Decider }

func (lostOwner) Acquire(*limiter.Query, *limiter.Answer) (limiter.Slot, error) {
	return limiter.Slot{}, limiter.ErrTryAgain
}

func (lostOwner) RenewSlot(string, time.Duration) (time.Duration, error) {
	return 0, limiter.ErrTryAgain
}
func (lostOwner) ReleaseSlot(string) (bool, error) { return false, limiter.ErrTryAgain }
func (lostOwner) ReleaseUnanswered(limiter.Slot)   {}

func TestSlotsWithoutOwner(t *testing.T) {
	t.Parallel()
	n := startWithSlots(t, func(c *apitest.Config) { c.Decider = lostOwner{c.Decider} })
	for path, body := range map[string]string{
		"/v1/acquire": `{"rule":"render","key":"x"}`, "/v1/renew": slotBody("x"), "/v1/release": slotBody("x"),
	} {
		expect.Equal(t, n.call(path, body, 503)["code"], "try-again", "%s", path)
	}
}

// slowOwner is a decider whose first acquire takes until its caller has hung up.
type slowOwner struct {
	*limiter.Limiter
	asked  *atomic.Int32
	hungUp chan struct{}
}

func (s slowOwner) Acquire(q *limiter.Query, a *limiter.Answer) (limiter.Slot, error) {
	slot, err := s.Limiter.Acquire(q, a)
	if s.asked.Add(1) == 1 {
		<-s.hungUp
	}
	return slot, err
}

// Who hangs up before the answer holds nothing.
func TestAcquireOfWhoHungUp(t *testing.T) {
	t.Parallel()
	if !canSeeHangUps {
		t.Skip("hung up callers are not seen on this system")
	}
	hungUp := make(chan struct{})
	asked := &atomic.Int32{}
	n := startWithSlots(t, func(c *apitest.Config) { c.Decider = slowOwner{c.Decider.(*limiter.Limiter), asked, hungUp} })
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.DataURL, "http://"))
	expect.NoError(t, err)
	const body = `{"rule":"render","key":"gone","n":2,"request_id":"one"}`
	fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	apitest.Until(t, "the node serves the connection", func() bool { return n.open() > 0 })
	expect.NoError(t, conn.Close())
	close(hungUp)
	apitest.Until(t, "the slots are free", func() bool {
		limits := n.call("/v1/usage", `{"rule":"render","key":"gone"}`, 200)["limits"].([]any)
		return number(limits[0].(map[string]any)["used"]) == 0
	})
}

// A caller that asks again, because the first answer is late, keeps its slot
// although it hangs up on the first one.
func TestRepeatedAcquireOfWhoHungUp(t *testing.T) {
	t.Parallel()
	if !canSeeHangUps {
		t.Skip("hung up callers are not seen on this system")
	}
	hungUp, asked := make(chan struct{}), &atomic.Int32{}
	n := startWithSlots(t, func(c *apitest.Config) { c.Decider = slowOwner{c.Decider.(*limiter.Limiter), asked, hungUp} })
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.DataURL, "http://"))
	expect.NoError(t, err)
	const body = `{"rule":"render","key":"gone","n":2,"request_id":"one"}`
	fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	apitest.Until(t, "the first attempt has its slot", func() bool { return asked.Load() == 1 })

	slot := n.acquire(body)
	expect.NoError(t, conn.Close())
	close(hungUp)
	apitest.Until(t, "the first attempt is over", func() bool { return n.open() <= 1 })
	n.call("/v1/renew", slotBody(slot), 200)
}
